//! Line plots as SVG text.

use crate::failure::Failure;
use plotters::prelude::*;

pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Formats a number of bytes with a decimal unit: B, kB, MB or GB.
pub fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..=999 => (1, "B"),
        1_000..=999_999 => (1_000, "kB"),
        1_000_000..=999_999_999 => (1_000_000, "MB"),
        _ => (1_000_000_000, "GB"),
    };
    let whole = bytes.is_multiple_of(unit);
    if whole {
        format!("{} {name}", bytes / unit)
    } else {
        format!("{:.1} {name}", bytes as f64 / unit as f64)
    }
}

pub struct Axes<'a> {
    pub x: &'a str,
    pub y: &'a str,
    /// True for a logarithmic x axis, labelled in bytes.
    pub is_logarithmic: bool,
}

const SIZE: (u32, u32) = (900, 320);
/// The limit on drawn points per line.
const POINTS: usize = 3000;

/// The palette of Okabe and Ito, whose colours colour-blind people can distinguish, and grey. It repeats after 8 lines.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
    RGBColor(150, 150, 150),
];
/// The limit on lines in a legend.
const NAMED: usize = 16;

const fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// Returns the legend of a plot as HTML; empty for one line, or for more than 16.
pub fn legend(lines: &[Line]) -> String {
    if !(2..=NAMED).contains(&lines.len()) {
        return String::new();
    }
    let name = |(number, line): (usize, &Line)| {
        let RGBColor(r, g, b) = colour(number);
        format!("<span><i style=\"background:rgb({r},{g},{b})\"></i>{}</span>", line.name)
    };
    let names: String = lines.iter().enumerate().map(name).collect();
    format!("<p class=legend>{names}</p>")
}

/// Draws the lines as SVG. Returns an empty text if there are no points.
pub fn lines(axes: &Axes<'_>, lines: &[Line]) -> Result<String, Failure> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (Some(from), Some(to)) = (
        points().map(|point| point.0).min_by(f64::total_cmp),
        points().map(|point| point.0).max_by(f64::total_cmp),
    ) else {
        return Ok(String::new());
    };
    let top = points().map(|point| point.1).fold(0.0, f64::max).max(1e-9) * 1.05;
    let mut text = String::new();
    let drawn = if axes.is_logarithmic {
        // The plot is linear in the logarithm; the labels show the size.
        let scaled: Vec<Line> = lines
            .iter()
            .map(|line| Line {
                name: line.name.clone(),
                points: line.points.iter().map(|point| (point.0.max(1.0).log10(), point.1)).collect(),
            })
            .collect();
        draw(&mut text, axes, &scaled, (from.max(1.0).log10(), to.max(10.0).log10()), top)
    } else {
        draw(&mut text, axes, lines, (from, to.max(from + 1e-9)), top)
    };
    drawn.map_err(|error| Failure::run(format!("a plot: {error}")))?;
    Ok(text)
}

fn draw(
    text: &mut String,
    axes: &Axes<'_>,
    lines: &[Line],
    (from, to): (f64, f64),
    top: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(from..to, 0.0..top)?;
    let power = |value: &f64| size(10_f64.powf(*value).round() as u64);
    let plain = |value: &f64| format!("{value:.0}");
    let label: &dyn Fn(&f64) -> String = if axes.is_logarithmic { &power } else { &plain };
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(axes.x).y_desc(axes.y).light_line_style(WHITE).bold_line_style(BLACK.mix(0.12));
    mesh.x_label_formatter(&label).label_style(("sans-serif", 14)).draw()?;
    for (number, line) in lines.iter().enumerate() {
        let step = line.points.len().div_ceil(POINTS).max(1);
        let points = line.points.iter().copied().step_by(step);
        let width = if lines.len() <= 4 { 2 } else { 1 };
        chart.draw_series(LineSeries::new(points, colour(number).stroke_width(width)))?;
    }
    area.present()?;
    drop(chart);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_is_svg_with_its_labels() {
        let line =
            |name: &str| Line { name: name.into(), points: (1..50).map(|x| (f64::from(x), 2.0)).collect() };
        for is_logarithmic in [false, true] {
            let axes = Axes { x: "µs", y: "kB", is_logarithmic };
            let both = [line("one"), line("two")];
            let text = lines(&axes, &both).unwrap();
            assert!(text.starts_with("<svg") && text.contains("kB") && text.contains("µs"), "{text}");
            assert!(legend(&both).contains("two") && legend(&both[..1]).is_empty());
            assert_eq!(lines(&axes, &[]).unwrap(), "");
        }
    }
}
