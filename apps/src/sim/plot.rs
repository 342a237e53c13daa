//! Plots as SVG text.

use crate::failure::Failure;
use plotters::prelude::*;

/// A line of a plot: a name, and its points.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// What a plot's axes say.
pub struct Axes<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    /// The x axis counts in powers of ten.
    pub is_logarithmic: bool,
}

const SIZE: (u32, u32) = (900, 320);
/// Points of a line that a picture can show.
const POINTS: usize = 3000;

/// Draws lines. An empty text where there is nothing to draw.
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
        // A size's logarithm: what the axis shows is turned back.
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
        .caption(axes.title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(from..to, 0.0..top)?;
    let power = |value: &f64| format!("{:.0}", 10_f64.powf(*value));
    let plain = |value: &f64| format!("{value:.0}");
    let label: &dyn Fn(&f64) -> String = if axes.is_logarithmic { &power } else { &plain };
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(axes.x).y_desc(axes.y).light_line_style(WHITE).x_label_formatter(&label).draw()?;
    for (number, line) in lines.iter().enumerate() {
        let colour = Palette99::pick(number).to_rgba();
        let step = line.points.len().div_ceil(POINTS).max(1);
        let points = line.points.iter().copied().step_by(step);
        let series = chart.draw_series(LineSeries::new(points, colour.stroke_width(1)))?;
        if lines.len() <= 16 {
            series
                .label(line.name.clone())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour));
        }
    }
    if (2..=16).contains(&lines.len()) {
        let mut labels = chart.configure_series_labels();
        labels.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    }
    area.present()?;
    drop(chart);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_is_svg_with_its_words() {
        let line =
            |name: &str| Line { name: name.into(), points: (1..50).map(|x| (f64::from(x), 2.0)).collect() };
        for is_logarithmic in [false, true] {
            let axes = Axes { title: "Queue", x: "µs", y: "kB", is_logarithmic };
            let text = lines(&axes, &[line("one"), line("two")]).unwrap();
            assert!(text.starts_with("<svg") && text.contains("Queue") && text.contains("two"), "{text}");
            assert_eq!(lines(&axes, &[]).unwrap(), "");
        }
    }
}
