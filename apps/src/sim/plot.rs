//! Line plots for pages: SVG for the lines, HTML for the labels, so that text keeps its size on any screen. Colours are variables of the
//! page's style, and follow light and dark mode. A checkbox at each name hides and shows its line, without scripts.

use std::fmt::Write;

pub struct Line {
    pub name: String,
    /// Number of the line's colour, dashes, width and opacity.
    pub style: usize,
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

/// A plot of lines over one axis.
#[derive(Clone, Default)]
pub struct Plot<'a> {
    pub heading: &'a str,
    pub says: &'a str,
    /// Labels of the axes, with units.
    pub axes: [&'a str; 2],
    /// True for a logarithmic x axis, labelled in bytes. Otherwise the x axis begins at 0.
    pub is_logarithmic: bool,
    /// End of the x axis, so that plots of one run are aligned; 0 for that of the points.
    pub end: f64,
    /// Range of the x axis that is shaded as the steady state.
    pub steady: Option<[f64; 2]>,
    /// Reference value, drawn as a horizontal line, with its name.
    pub ideal: Option<(String, f64)>,
}

/// The limit on the intervals of a line. Of each interval, the lowest and the highest point are drawn.
const PARTS: usize = 700;
/// Units of the drawing's width and height.
const WIDE: f64 = 10_000.0;
const HIGH: f64 = 1000.0;
/// Number of lines above which the legend is collapsed.
const MANY: usize = 16;

/// Colours that colour-blind people can distinguish (after Okabe and Ito, and Tol), for light and for dark pages.
const COLOURS: [[&str; 2]; 10] = [
    ["#0072b2", "#4da6e0"],
    ["#d55e00", "#ff8c42"],
    ["#009e73", "#2fd0a3"],
    ["#b0468c", "#e58bc4"],
    ["#3a9bd9", "#9ad3f5"],
    ["#b87f00", "#f2bc3d"],
    ["#6a3fb5", "#b79cf2"],
    ["#8c4a32", "#d99a80"],
    ["#6e6e6e", "#b5b5b5"],
    ["#7d8a00", "#c9d64a"],
];
/// Dashes and gaps, by which lines of one colour differ. A solid line remains visible below a dashed one.
const DASHES: [&str; 8] = ["none", "9 5", "3 3", "12 4 3 4", "18 4", "1 4", "6 2 1 2", "14 3 3 3 3 3"];
/// Widths and opacities, by which lines differ that have the same colour and dashes.
const WIDTHS: [&str; 4] = ["1.7", "3.2", "1", "5"];
const OPACITIES: [&str; 2] = ["1", ".5"];
/// Number of colours: styles that differ by a multiple of it have the same. Each colour has 64 styles, so that 64 flows of one algorithm,
/// which is the limit on the flows of a report, look different.
pub const HUES: usize = COLOURS.len();
/// The limit on lines of a plot that can be hidden.
const LINES: usize = 128;

/// Returns the kind of dashes of a style: neighbours, and styles of one colour, have different ones.
const fn dashes(style: usize) -> usize {
    (style % HUES + style / HUES) % DASHES.len()
}

/// Returns the classes of a line in the style sheet: colour, dashes, width and opacity.
fn classes(style: usize) -> String {
    let round = style / HUES / DASHES.len();
    let (width, opacity) = (round % WIDTHS.len(), round / WIDTHS.len() % OPACITIES.len());
    format!("h{} d{} w{width} o{opacity}", style % HUES, dashes(style))
}

/// Returns the style sheet of plots.
pub fn styles() -> String {
    let variables = |mode: usize| {
        let each = COLOURS.iter().enumerate().map(|(number, of)| format!("--c{number}:{};", of[mode]));
        each.collect::<String>()
    };
    let mut text =
        format!(":root{{{}}}@media(prefers-color-scheme:dark){{:root{{{}}}}}", variables(0), variables(1));
    for hue in 0..HUES {
        let _ = write!(text, ".h{hue}{{stroke:var(--c{hue})}}");
    }
    let mut parts = |class: &str, property: &str, values: &[&str]| {
        for (number, value) in values.iter().enumerate() {
            let _ = write!(text, ".{class}{number}{{{property}:{value}}}");
        }
    };
    parts("d", "stroke-dasharray", &DASHES);
    parts("w", "stroke-width", &WIDTHS);
    parts("o", "stroke-opacity", &OPACITIES);
    for line in 0..LINES {
        let _ = write!(text, "figure:has(.t{line}:not(:checked)) .plot .l{line}{{display:none}}");
    }
    text + ".plot{display:grid;grid-template-columns:3.6em 1fr;font-size:.85em;color:var(--faint);margin-right:1.2em}\
        .plot svg{grid-column:2;width:100%;height:15em;display:block;overflow:visible}.plot path{fill:none;vector-effect:non-scaling-stroke;\
        stroke-linejoin:round}.plot .grid{stroke:var(--line)}.ideal{stroke:var(--text);stroke-dasharray:2 5;stroke-width:1.5}\
        .steady{fill:var(--mark)}.ys,.xs{position:relative}.ys span{position:absolute;right:.5em;transform:translateY(50%);white-space:nowrap}\
        .xs{grid-column:2;height:1.6em}.xs span{position:absolute;transform:translateX(-50%);white-space:nowrap}.unit{grid-column:1/3}\
        .x{text-align:right}.legend{max-height:14em;overflow:auto}.legend label{display:inline-block;margin:0 1.1em .2em 0;white-space:nowrap}\
        .key{width:2.2em;height:.6em;vertical-align:middle;margin:0 .4em}.key path,.key rect{vector-effect:non-scaling-stroke}\
        .legend input{margin:0;vertical-align:middle}figure{margin:2em 0}"
}

/// Returns a picture of a line style, for tables and legends.
pub fn key(style: usize) -> String {
    format!("<svg class=key viewBox=\"0 0 30 6\"><path class=\"{}\" d=\"M0 3H30\"/></svg>", classes(style))
}

impl Plot<'_> {
    /// Returns the plot as HTML; an empty text if there are no points.
    pub fn of(&self, lines: &[Line]) -> String {
        let points = || lines.iter().flat_map(|line| &line.points);
        if points().next().is_none() {
            return String::new();
        }
        let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
        let (from, to) = if self.is_logarithmic {
            let least = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
            (least.max(1.0).log10().floor(), most(|point| point.0).max(10.0).log10().ceil())
        } else {
            (0.0, self.end.max(most(|point| point.0)).max(1e-9))
        };
        let ideal = self.ideal.as_ref().map_or(0.0, |ideal| ideal.1);
        let top = most(|point| point.1).max(ideal).max(1e-9) * 1.05;
        let x = |value: f64| {
            let value = if self.is_logarithmic { value.max(1.0).log10() } else { value };
            (value - from) / (to - from)
        };
        let scale = Scale { x: &x, top };
        let ys: Vec<f64> = ticks(top);
        let xs: Vec<(f64, String)> = if self.is_logarithmic {
            let label = |power: i32| (10_f64.powi(power), size(10_u64.pow(power as u32)));
            (from as i32..=to as i32).map(label).collect()
        } else {
            ticks(to).into_iter().map(|tick| (tick, number(tick))).collect()
        };
        let [across, up] = self.axes;
        let mut text = format!(
            "<figure><h2>{}</h2><p>{}</p><div class=plot><div class=unit>{up}</div><div class=ys>",
            self.heading, self.says
        );
        for tick in &ys {
            let _ =
                write!(text, "<span style=\"bottom:{:.2}%\">{}</span>", tick / top * 100.0, number(*tick));
        }
        let _ = write!(
            text,
            "</div><svg viewBox=\"0 0 {WIDE} {HIGH}\" preserveAspectRatio=none role=img aria-label=\"{}\">",
            self.heading
        );
        if let Some([begin, end]) = self.steady {
            let (left, right) = (x(begin) * WIDE, x(end) * WIDE);
            let _ = write!(text, "<rect class=steady x={left:.0} width={:.0} height={HIGH} />", right - left);
        }
        ys.iter()
            .for_each(|tick| text += &format!("<path class=grid d=\"M0 {:.0}H{WIDE}\"/>", scale.y(*tick)));
        // Dashed lines are drawn last, because solid lines remain visible below them.
        let mut drawn: Vec<(usize, &Line)> = lines.iter().enumerate().collect();
        drawn.sort_by_key(|(_, line)| dashes(line.style));
        drawn.iter().for_each(|(number, line)| text += &scale.path(*number, line));
        if let Some((_, value)) = &self.ideal {
            let _ = write!(text, "<path class=ideal d=\"M0 {:.0}H{WIDE}\"/>", scale.y(*value));
        }
        text += "</svg><div class=xs>";
        for (tick, label) in &xs {
            let _ = write!(text, "<span style=\"left:{:.2}%\">{label}</span>", x(*tick) * 100.0);
        }
        text + &format!("</div><div class=\"unit x\">{across}</div></div>{}</figure>", self.legend(lines))
    }

    fn legend(&self, lines: &[Line]) -> String {
        let mut names = String::new();
        for (number, Line { name, style, .. }) in lines.iter().enumerate().filter(|_| lines.len() > 1) {
            let _ = write!(
                names,
                "<label><input type=checkbox checked class=t{number}>{}{name}</label>",
                key(*style)
            );
        }
        if lines.len() > MANY {
            names = format!(
                "<details><summary>Legend of {} lines; clear a checkbox to hide a line</summary>{names}</details>",
                lines.len()
            );
        }
        if let Some((name, _)) = &self.ideal {
            names += &format!(
                "<label><svg class=key viewBox=\"0 0 30 6\"><path class=ideal d=\"M0 3H30\"/></svg>{name}</label>"
            );
        }
        if self.steady.is_some() {
            names += "<label><svg class=key viewBox=\"0 0 30 6\"><rect class=steady width=30 height=6 /></svg>steady state</label>";
        }
        if names.is_empty() { names } else { format!("<div class=legend>{names}</div>") }
    }
}

/// From values to the drawing.
struct Scale<'a> {
    /// Share of the width.
    x: &'a dyn Fn(f64) -> f64,
    top: f64,
}

impl Scale<'_> {
    fn y(&self, value: f64) -> f64 {
        HIGH - value / self.top * HIGH
    }

    fn path(&self, number: usize, line: &Line) -> String {
        let mut text = format!("<path class=\"l{number} {}\" d=\"M", classes(line.style));
        let size = line.points.len().div_ceil(PARTS).max(1);
        for part in line.points.chunks(size) {
            let by_height = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
            let mut ends = [part.iter().min_by(by_height), part.iter().max_by(by_height)];
            ends.sort_by(|a, b| {
                a.map(|point| point.0)
                    .partial_cmp(&b.map(|point| point.0))
                    .unwrap_or(std::cmp::Ordering::Equal)
            });
            let count = if size == 1 { 1 } else { 2 };
            for (x, y) in ends.into_iter().flatten().take(count) {
                let _ = write!(text, "{:.0} {:.0} ", (self.x)(*x) * WIDE, self.y(*y));
            }
        }
        text.truncate(text.trim_end().len());
        text + "\"/>"
    }
}

/// Returns four to eight round numbers from 0 to `top`.
fn ticks(top: f64) -> Vec<f64> {
    let power = 10_f64.powf((top / 4.0).log10().floor());
    let step =
        [5.0, 2.0, 1.0].into_iter().map(|of| of * power).find(|step| top / step >= 4.0).unwrap_or(power);
    (0..).map(|tick| f64::from(tick) * step).take_while(|tick| *tick <= top).collect()
}

/// Formats a tick without zeros at the end of decimals.
fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(style: usize, count: u32) -> Line {
        Line {
            name: format!("line {style}"),
            style,
            points: (1..count).map(|x| (f64::from(x), 2.0)).collect(),
        }
    }

    #[test]
    fn a_plot_has_its_labels_from_zero_and_its_lines() {
        let axes = ["time, µs", "kB"];
        for is_logarithmic in [false, true] {
            let plot = Plot { heading: "Queue", axes, is_logarithmic, ..Plot::default() };
            let text = plot.of(&[line(0, 50), line(11, 50)]);
            assert_eq!(text.matches("<path class=\"l").count(), 2, "{text}");
            assert_eq!(text.matches("h0 d").count(), 2, "a line and its key: {text}");
            assert!(text.contains("kB") && text.contains("time, µs") && text.contains("line 11"), "{text}");
            let begin = if is_logarithmic { "left:0.00%\">1 B<" } else { "left:0.00%\">0<" };
            assert!(text.contains(begin), "{text}");
            assert_eq!(plot.of(&[]), "");
        }
    }

    #[test]
    fn plots_with_one_end_are_aligned_and_mark_window_and_ideal() {
        let ideal = Some(("link".to_owned(), 100.0));
        let plot = Plot { end: 200.0, steady: Some([50.0, 150.0]), ideal, ..Plot::default() };
        let text = plot.of(&[line(0, 50)]);
        assert!(text.contains("<rect class=steady x=2500 width=5000"), "{text}");
        assert!(text.contains("left:100.00%\">200<") && text.contains("bottom:95.24%\">100<"), "{text}");
        assert!(
            text.contains("<path class=ideal d=\"M0 48H10000\"/>") && text.contains("link</label>"),
            "{text}"
        );
        assert!(!text.contains("<input"), "one line needs no box: {text}");
    }

    /// 64 flows of different algorithms, and 64 of one, which have one colour.
    #[test]
    fn each_line_of_many_has_its_box_and_looks_different() {
        for step in [1, HUES] {
            let lines: Vec<_> = (0..64).map(|number| line(number * step, 3)).collect();
            let text = Plot::default().of(&lines);
            let boxes = |number: usize| text.matches(&format!("checked class=t{number}>")).count();
            assert!((0..64).all(|number| boxes(number) == 1), "{text}");
            assert!(text.contains("<summary>Legend of 64 lines"), "{text}");
            let styles = styles();
            let looks: std::collections::BTreeSet<_> = lines.iter().map(|line| classes(line.style)).collect();
            assert_eq!(looks.len(), 64);
            let mut parts = looks.iter().flat_map(|classes| classes.split(' '));
            assert!(parts.all(|class| styles.contains(&format!(".{class}{{"))), "{styles}");
        }
    }

    #[test]
    fn a_long_line_keeps_its_peak() {
        let mut long = line(0, 100_000);
        long.points[54_321].1 = 70.0;
        let text = Plot::default().of(&[long]);
        assert!(text.contains(" 48 ") && text.len() < 40_000, "{}", text.len());
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(105.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(0.9).len(), 5);
        assert_eq!([number(0.25), number(1000.0), number(0.0)], ["0.25", "1000", "0"]);
    }
}
