//! The HTML page of an arena: for each scenario a table of all algorithms, and plots of the queue and the throughput of the bottleneck.

use super::arena::{Better, COLUMNS, Cell, Column, RATE};
use super::plot::{Line, Plot, key};
use super::report::{Colours, begin, escape, table};
use std::fmt::Write;

/// Returns the page. `cells` are grouped by scenario, hosts and algorithm.
pub fn page(cells: &[Cell]) -> String {
    let mut page = begin("Arena of congestion control").replace("<h1>", "<body class=wide><h1>");
    page += "<p class=lead>Every algorithm in every scenario, with model hosts and with the product's endpoints. With several \
         seeds, a figure is their mean. An algorithm has the same colour everywhere. In each column, the best figure among hosts of \
         the same kind is bold.</p><table class=words><tr><th>column<th>unit<th>what it is";
    for Column { name, unit, what, .. } in COLUMNS {
        let _ = write!(page, "<tr><td>{name}<td>{unit}<td>{what}");
    }
    page += "</table>";
    let mut colours = Colours::default();
    page += &summary(cells, &mut colours);
    for of_scenario in cells.chunk_by(|a, b| a.scenario == b.scenario) {
        let _ = write!(page, "<h2>{}</h2>", escape(&of_scenario[0].scenario));
        for of_hosts in of_scenario.chunk_by(|a, b| a.hosts == b.hosts) {
            page += &conclusion(of_hosts);
        }
        page += &figures(of_scenario, &mut colours);
        let end = of_scenario.iter().filter_map(|cell| cell.line.last()).map(|point| point[0]).max();
        for of_hosts in of_scenario.chunk_by(|a, b| a.hosts == b.hosts) {
            page += &plots(of_hosts, end.unwrap_or_default(), &mut colours);
        }
    }
    page + "</html>\n"
}

/// Returns, for each kind of hosts, a table that compares every algorithm with the best one of each scenario, and a sentence that names the
/// algorithm whose largest ratio is the smallest.
fn summary(cells: &[Cell], colours: &mut Colours) -> String {
    let slowdown = place("slowdown p99");
    let mut kinds: Vec<&str> = Vec::new();
    let mut scenarios: Vec<&str> = Vec::new();
    for cell in cells {
        for (all, one) in [(&mut kinds, &cell.hosts), (&mut scenarios, &cell.scenario)] {
            if !all.contains(&one.as_str()) {
                all.push(one);
            }
        }
    }
    let headings: Vec<String> = scenarios.into_iter().map(escape).collect();
    let mut text = String::new();
    for hosts in kinds {
        let of_hosts: Vec<&[Cell]> = cells
            .chunk_by(|a, b| (&a.scenario, &a.hosts) == (&b.scenario, &b.hosts))
            .filter(|group| group[0].hosts == hosts)
            .collect();
        let ratios = ratios(&of_hosts, slowdown);
        let _ = write!(
            text,
            "<h2>{}: 99th percentile of the slowdown, relative to the best algorithm</h2>",
            escape(hosts)
        );
        let least = ratios.iter().filter_map(|(_, ratios)| worst(ratios)).fold(f64::INFINITY, f64::min);
        if least.is_finite() {
            let is_closest = |ratios: &[Option<f64>]| worst(ratios) == Some(least);
            let names: Vec<&str> =
                ratios.iter().filter(|(_, ratios)| is_closest(ratios)).map(|(name, _)| *name).collect();
            let _ = write!(
                text,
                "<p>Closest to the best in every scenario: {}, at most {:.2} times as slow.</p>",
                escape(&names.join(", ")),
                (least * 100.0).ceil() / 100.0
            );
        }
        let columns: Vec<_> = [("algorithm", ""), ("at worst", "times")]
            .into_iter()
            .chain(headings.iter().map(|name| (name.as_str(), "times")))
            .collect();
        let rows = ratios.iter().map(|(name, ratios)| {
            let ratio = |ratio: &Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            let first = [key(colours.of(name)) + &escape(name), ratio(&worst(ratios))];
            ("", first.into_iter().chain(ratios.iter().map(ratio)).collect())
        });
        text += &table(&columns, rows);
    }
    text
}

/// Returns an algorithm's largest ratio; `None` if it has none in a scenario.
fn worst(ratios: &[Option<f64>]) -> Option<f64> {
    ratios.iter().try_fold(0.0, |worst: f64, ratio| ratio.map(|ratio| worst.max(ratio)))
}

/// Returns each algorithm's figure in each group of cells, divided by the best figure of the group. `None` if it has no figure there.
fn ratios<'a>(groups: &[&'a [Cell]], column: usize) -> Vec<(&'a str, Vec<Option<f64>>)> {
    let mut all: Vec<(&str, Vec<Option<f64>>)> = Vec::new();
    for (place, group) in groups.iter().enumerate() {
        let values: Vec<(&str, f64)> = values(group, column);
        let best = values.iter().map(|value| value.1).fold(f64::INFINITY, f64::min);
        for (name, value) in values {
            let known = all.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                all.push((name, vec![None; groups.len()]));
                all.len() - 1
            });
            all[known].1[place] = Some(value / best);
        }
    }
    all
}

/// Returns the algorithms that have a figure in a column, with the figure. `cells` are of one scenario and one kind of hosts.
fn values(cells: &[Cell], column: usize) -> Vec<(&str, f64)> {
    let of_algorithm = |seeds: &'_ [Cell]| mean(seeds, column).parse().ok();
    cells
        .chunk_by(|a, b| a.algorithm == b.algorithm)
        .filter_map(|seeds| Some((seeds[0].algorithm.as_str(), of_algorithm(seeds)?)))
        .collect()
}

/// Returns the index of a column.
fn place(name: &str) -> usize {
    COLUMNS.iter().position(|column| column.name == name).unwrap_or_default()
}

/// Returns the best and the worst figure of a column, unless all are equal.
fn extremes(values: &[(&str, f64)], better: Better) -> Option<[f64; 2]> {
    let least = values.iter().map(|value| value.1).fold(f64::INFINITY, f64::min);
    let most = values.iter().map(|value| value.1).fold(f64::NEG_INFINITY, f64::max);
    (least < most).then_some(match better {
        Better::More => [most, least],
        Better::Less => [least, most],
    })
}

/// The columns that [`conclusion`] reports, with the words before the best and before the worst algorithm.
const CONCLUSIONS: [(&str, &str, &str); 4] = [
    ("all", "The last flow ends earliest with", "latest with"),
    ("queue p99", "The queue (p99) is shortest with", "longest with"),
    ("Jain", "Shares are most equal with", "least with"),
    ("short p99", "Short flows are slowed down least with", "most with"),
];

/// Returns a paragraph that names the best and the worst algorithms. `cells` are of one scenario and one kind of hosts.
fn conclusion(cells: &[Cell]) -> String {
    let mut text = format!("<p>{}.", escape(&cells[0].hosts));
    for (name, first, last) in CONCLUSIONS {
        let at = place(name);
        let Column { unit, better, .. } = COLUMNS[at];
        let values = values(cells, at);
        let Some([best, worst]) = extremes(&values, better) else { continue };
        let names = |figure: f64| {
            let names: Vec<&str> =
                values.iter().filter(|value| value.1 == figure).map(|value| value.0).collect();
            escape(&names.join(", "))
        };
        let unit = if name == "Jain" { String::new() } else { format!(" {unit}") };
        let _ =
            write!(text, " {first} {} ({best}{unit}), {last} {} ({worst}{unit}).", names(best), names(worst));
    }
    text + "</p>"
}

fn figures(cells: &[Cell], colours: &mut Colours) -> String {
    let columns: Vec<_> = [("algorithm", ""), ("hosts", "")]
        .into_iter()
        .chain(COLUMNS.iter().map(|column| (column.name, column.unit)))
        .collect();
    let link = cells.iter().find_map(|cell| cell.link).map_or_else(String::new, |link| format!("{link}"));
    let ideals = COLUMNS.iter().map(|column| match column.ideal {
        RATE => link.clone(),
        ideal => ideal.to_owned(),
    });
    let ideal = ["ideal".to_owned(), String::new()].into_iter().chain(ideals).collect();
    let mut rows = vec![("ideal-row", ideal)];
    for of_hosts in cells.chunk_by(|a, b| a.hosts == b.hosts) {
        let best: Vec<Option<f64>> = (0..COLUMNS.len())
            .map(|at| extremes(&values(of_hosts, at), COLUMNS[at].better).map(|[best, _]| best))
            .collect();
        rows.extend(
            of_hosts.chunk_by(|a, b| a.algorithm == b.algorithm).map(|seeds| row(seeds, &best, colours)),
        );
    }
    table(&columns, rows.into_iter())
}

/// Returns the row of an algorithm. A figure that equals the best of its column is bold.
fn row(seeds: &[Cell], best: &[Option<f64>], colours: &mut Colours) -> (&'static str, Vec<String>) {
    let Cell { algorithm, hosts, refused, .. } = &seeds[0];
    let name = key(colours.of(algorithm)) + &escape(algorithm);
    let figure = |(column, best): (usize, &Option<f64>)| {
        let text = mean(seeds, column);
        let is_best = best.is_some() && text.parse().ok() == *best;
        if is_best { format!("<b>{text}</b>") } else { text }
    };
    let figures: Vec<String> = match refused {
        Some(why) => vec![escape(why)],
        None => best.iter().enumerate().map(figure).collect(),
    };
    ("", [name, escape(hosts)].into_iter().chain(figures).collect())
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
            let from = page.rfind(&format!("</svg>{name}<td")).unwrap();
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
        assert_eq!(page.matches(&format!("h{style} d{style} w0 o0\"")).count(), 6, "one colour everywhere");
        assert!(!page.contains("src=") && !page.contains("href="), "nothing from elsewhere");
    }
    #[test]
    fn the_best_figures_are_bold_and_a_sentence_names_the_best_and_the_worst() {
        let in_scenario = |scenario: &str, algorithm: &str, figure: &str| Cell {
            scenario: scenario.into(),
            ..cell(algorithm, 1, figure)
        };
        let page = page(&[
            in_scenario("a", "swift", "2"),
            in_scenario("a", "hpcc", "3"),
            in_scenario("a", "auto", "2"),
            in_scenario("b", "swift", "10"),
            in_scenario("b", "hpcc", "5"),
            in_scenario("b", "auto", "6"),
        ]);
        let of = |name: &str, figure: &str| format!("data-n=\"{name}\">{figure}<");
        assert!(
            page.contains(&of("Jain, of 1", "<b>3</b>")) && page.contains(&of("lost, packets", "<b>2</b>"))
        );
        assert!(page.contains(&of("Jain, of 1", "2")) && page.contains(&of("lost, packets", "3")), "{page}");
        assert!(
            page.contains("The last flow ends earliest with swift, auto (2 µs), latest with hpcc (3 µs).")
        );
        assert!(page.contains("Shares are most equal with swift (10), least with hpcc (5)."), "{page}");
        assert!(
            page.contains("<p>Closest to the best in every scenario: auto, at most 1.20 times as slow."),
            "{page}"
        );
        assert!(page.contains("data-n=\"at worst, times\">2.00<"), "{page}");
    }

    #[test]
    fn a_column_with_equal_figures_has_no_best_one() {
        let page = page(&[cell("hpcc", 1, "0"), cell("dctcp", 1, "0")]);
        assert!(!page.contains("<b>0") && !page.contains("earliest with"), "{page}");
    }
}
