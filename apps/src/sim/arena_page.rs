//! The HTML page of an arena: for each scenario a table of all algorithms, and plots of the queue and the throughput of the bottleneck.

use super::arena::{COLUMNS, Cell};
use super::plot::{Axes, Line, legend, lines};
use super::report::{STYLE, escape};
use crate::failure::Failure;
use std::fmt::Write;

/// Returns the page. `cells` are grouped by scenario, hosts and algorithm.
///
/// # Errors
/// Returns a failure if a plot cannot be drawn.
pub fn page(cells: &[Cell]) -> Result<String, Failure> {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=viewport content=\"width=device-width\">\
         <title>Arena of congestion control</title><style>{STYLE}body{{max-width:1500px}}</style><h1>Arena of congestion control</h1>\
         <p class=lead>Every algorithm in every scenario, as a model of hosts and as the product's endpoints. A figure of \
         several seeds is their mean.</p><table><tr><th>column<th>what it is"
    );
    for (name, what) in COLUMNS {
        let _ = write!(page, "<tr><td>{name}<td>{what}");
    }
    page += "</table>";
    for of_scenario in cells.chunk_by(|a, b| a.scenario == b.scenario) {
        let _ = write!(page, "<h2>{}</h2>", escape(&of_scenario[0].scenario));
        page += &table(of_scenario);
        for of_hosts in of_scenario.chunk_by(|a, b| a.hosts == b.hosts) {
            page += &plots(of_hosts)?;
        }
    }
    Ok(page + "</html>\n")
}

fn table(cells: &[Cell]) -> String {
    let mut text = String::from("<table><tr><th>algorithm<th>hosts");
    for (name, _) in COLUMNS {
        let _ = write!(text, "<th>{name}");
    }
    for seeds in cells.chunk_by(|a, b| (&a.hosts, &a.algorithm) == (&b.hosts, &b.algorithm)) {
        let Cell { algorithm, hosts, refused, .. } = &seeds[0];
        let _ = write!(text, "<tr><td>{}<td>{}", escape(algorithm), escape(hosts));
        match refused {
            Some(why) => {
                let _ = write!(text, "<td colspan={}>{}", COLUMNS.len(), escape(why));
            }
            None => (0..COLUMNS.len()).for_each(|column| {
                let _ = write!(text, "<td>{}", mean(seeds, column));
            }),
        }
    }
    text + "</table>"
}

/// Returns the mean of a figure over the seeds, with the figure's number of decimals, or an empty text.
fn mean(seeds: &[Cell], column: usize) -> String {
    let figures = || seeds.iter().filter_map(|cell| cell.figures.get(column)).filter(|text| !text.is_empty());
    let Some(first) = figures().next() else { return String::new() };
    if figures().count() == 1 {
        return escape(first);
    }
    let places = first.split_once('.').map_or(0, |(_, places)| places.len());
    let values: Vec<f64> = figures().filter_map(|text| text.parse().ok()).collect();
    format!("{:.places$}", values.iter().sum::<f64>() / values.len().max(1) as f64)
}

fn plots(cells: &[Cell]) -> Result<String, Failure> {
    let line = |of: fn(&[u64; 3]) -> f64| {
        let of_cell = |seeds: &[Cell]| Line {
            name: seeds[0].algorithm.clone(),
            points: seeds[0].line.iter().map(|point| (point[0] as f64 / 1e3, of(point))).collect(),
        };
        let lines = cells.chunk_by(|a, b| a.algorithm == b.algorithm).map(of_cell);
        lines.filter(|line| !line.points.is_empty()).collect::<Vec<_>>()
    };
    let mut text = String::new();
    for (what, unit, of) in [
        ("queue at the bottleneck", "kB", line(|point| point[1] as f64 / 1e3)),
        ("what the bottleneck carried", "Gb/s", line(|point| point[2] as f64 / 1e3)),
    ] {
        let picture = lines(&Axes { x: "time, µs", y: unit, is_logarithmic: false }, &of)?;
        if !picture.is_empty() {
            let _ = write!(text, "<p>{}, {what}</p>{picture}{}", escape(&cells[0].hosts), legend(&of));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(algorithm: &str, seed: u64, figure: &str) -> Cell {
        Cell {
            scenario: "<lot>".into(),
            hosts: "model".into(),
            algorithm: algorithm.into(),
            seed,
            refused: None,
            figures: vec![figure.into(); COLUMNS.len()],
            line: (0..10).map(|time| [time * 1000, time, 90_000]).collect(),
        }
    }

    #[test]
    fn a_page_has_a_row_for_each_algorithm_and_the_mean_of_its_seeds() {
        let refused = Cell { refused: Some("it can't".into()), ..cell("c", 1, "") };
        let page = page(&[cell("a", 1, "1.0"), cell("a", 2, "2.0"), cell("b", 1, "7"), refused]).unwrap();
        assert!(
            page.contains("<tr><td>a<td>model<td>1.5<td>1.5") && page.contains("<tr><td>b<td>model<td>7")
        );
        assert!(page.contains("it can't") && page.contains("&lt;lot>"), "{page}");
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(!page.contains("src=") && !page.contains("href="), "nothing from elsewhere");
    }
}
