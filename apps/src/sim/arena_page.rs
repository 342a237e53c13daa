//! The HTML page of an arena: for each scenario a table of all algorithms, and plots of the queue and the throughput of the bottleneck.

use super::arena::{COLUMNS, Cell, RATE};
use super::plot::{Line, Plot, key};
use super::report::{Colours, begin, escape, table};
use std::fmt::Write;

/// Returns the page. `cells` are grouped by scenario, hosts and algorithm.
pub fn page(cells: &[Cell]) -> String {
    let mut page = begin("Arena of congestion control").replace("<h1>", "<body class=wide><h1>");
    page += "<p class=lead>Every algorithm in every scenario, as a model of hosts and as the product's endpoints. A figure of \
         several seeds is their mean. An algorithm has one colour everywhere.</p><table class=words><tr><th>column<th>unit<th>what it is";
    for (name, unit, what, _) in COLUMNS {
        let _ = write!(page, "<tr><td>{name}<td>{unit}<td>{what}");
    }
    page += "</table>";
    let mut colours = Colours::default();
    for of_scenario in cells.chunk_by(|a, b| a.scenario == b.scenario) {
        let _ = write!(page, "<h2>{}</h2>", escape(&of_scenario[0].scenario));
        page += &figures(of_scenario, &mut colours);
        let end = of_scenario.iter().filter_map(|cell| cell.line.last()).map(|point| point[0]).max();
        for of_hosts in of_scenario.chunk_by(|a, b| a.hosts == b.hosts) {
            page += &plots(of_hosts, end.unwrap_or_default(), &mut colours);
        }
    }
    page + "</html>\n"
}

fn figures(cells: &[Cell], colours: &mut Colours) -> String {
    let columns: Vec<_> = [("algorithm", ""), ("hosts", "")]
        .into_iter()
        .chain(COLUMNS.iter().map(|(name, unit, ..)| (*name, *unit)))
        .collect();
    let link = cells.iter().find_map(|cell| cell.link).map_or_else(String::new, |link| format!("{link}"));
    let ideals =
        COLUMNS.iter().map(|(.., ideal)| if *ideal == RATE { link.clone() } else { (*ideal).to_owned() });
    let ideal = ["ideal".to_owned(), String::new()].into_iter().chain(ideals).collect();
    let row = |seeds: &[Cell]| {
        let Cell { algorithm, hosts, refused, .. } = &seeds[0];
        let name = key(colours.of(algorithm)) + &escape(algorithm);
        let figures: Vec<String> = match refused {
            Some(why) => vec![escape(why)],
            None => (0..COLUMNS.len()).map(|column| mean(seeds, column)).collect(),
        };
        ("", [name, escape(hosts)].into_iter().chain(figures).collect())
    };
    let rows = cells.chunk_by(|a, b| (&a.hosts, &a.algorithm) == (&b.hosts, &b.algorithm)).map(row);
    table(&columns, [("ideal-row", ideal)].into_iter().chain(rows))
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

/// Returns the plots of one kind of hosts, from 0 to `end`, ns.
fn plots(cells: &[Cell], end: u64, colours: &mut Colours) -> String {
    let mut lines = |of: fn(&[u64; 3]) -> f64| {
        let of_cell = |seeds: &[Cell]| Line {
            name: escape(&seeds[0].algorithm),
            style: colours.of(&seeds[0].algorithm),
            points: seeds[0].line.iter().map(|point| (point[0] as f64 / 1e3, of(point))).collect(),
        };
        let lines = cells.chunk_by(|a, b| a.algorithm == b.algorithm).map(of_cell);
        lines.filter(|line| !line.points.is_empty()).collect::<Vec<_>>()
    };
    // What is steady with every algorithm.
    let windows = || cells.iter().filter_map(|cell| cell.steady);
    let common = [windows().map(|of| of[0]).max(), windows().map(|of| of[1]).min()];
    let steady = match common {
        [Some(begin), Some(end)] if begin < end => Some([begin, end].map(|time| time as f64 / 1e3)),
        _ => None,
    };
    let hosts = escape(&cells[0].hosts);
    let [queue, carried] =
        ["queue at the bottleneck", "what the bottleneck carried"].map(|of| format!("{hosts}: {of}"));
    let plot = Plot { end: end as f64 / 1e3, steady, ..Plot::default() };
    let of_queue = Plot { heading: &queue, axes: ["time, µs", "kB"], ..plot.clone() };
    let link = cells.iter().find_map(|cell| cell.link);
    let ideal = link.map(|link| (format!("link: {link} Gb/s"), link));
    let of_link = Plot { heading: &carried, axes: ["time, µs", "Gb/s"], ideal, ..plot };
    of_queue.of(&lines(|point| point[1] as f64 / 1e3)) + &of_link.of(&lines(|point| point[2] as f64 / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::congestion::CcName;

    fn cell(algorithm: &str, seed: u64, figure: &str) -> Cell {
        Cell {
            scenario: "<lot>".into(),
            hosts: "model".into(),
            algorithm: algorithm.into(),
            seed,
            refused: None,
            figures: vec![figure.into(); COLUMNS.len()],
            link: Some(100.0),
            steady: Some([2000, 6000 + seed]),
            line: (0..10).map(|time| [time * 1000, time, 90_000]).collect(),
        }
    }

    #[test]
    fn a_page_has_a_row_for_each_algorithm_and_the_mean_of_its_seeds() {
        let refused = Cell { refused: Some("it can't".into()), ..cell("c", 1, "") };
        let page = page(&[cell("dcqcn", 1, "1.0"), cell("dcqcn", 2, "2.0"), cell("b", 1, "7"), refused]);
        let row = |name: &str, of: &str| {
            let from = page.find(&format!("</svg>{name}<td")).unwrap();
            let rest = &page[from..];
            assert!(
                rest[..rest.find("<tr").unwrap_or(rest.len())].matches(of).count() >= COLUMNS.len(),
                "{rest}"
            );
        };
        row("dcqcn", ">1.5");
        row("b", ">7");
        assert!(
            page.contains("data-n=\"queue p50, B\">7") && page.contains("<td data-n=\"carried, Gb/s\">100<")
        );
        assert!(page.contains("<td class=rest colspan=14>it can't") && page.contains("&lt;lot>"), "{page}");
        assert_eq!(page.matches("<figure>").count(), 2);
        // From 2 to 6.001 of 9 µs, what is steady in every run.
        assert!(page.contains("<rect class=steady x=2222 width=4446"), "{page}");
        let style = CcName::all().position(|name| name == CcName::Dcqcn).unwrap();
        assert_eq!(page.matches(&format!("h{style} d{style} w0 o0\"")).count(), 5, "one colour everywhere");
        assert!(!page.contains("src=") && !page.contains("href="), "nothing from elsewhere");
    }
}
