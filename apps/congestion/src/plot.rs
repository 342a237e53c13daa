//! Plots a run: rates, queue and utilisation over time.

use crate::run::Run;
use std::fmt::Write as _;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 170.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 30.0;
const GAP: f64 = 40.0;
const COLOURS: [&str; 8] =
    ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f"];

struct Panel {
    number: usize,
    title: &'static str,
    end: f64,
    top: f64,
}

impl Panel {
    fn y0(&self) -> f64 {
        TOP + self.number as f64 * (HEIGHT + GAP)
    }

    fn frame(&self) -> String {
        let (y, bottom) = (self.y0(), self.y0() + HEIGHT);
        let mut svg = format!(
            "<rect x='{LEFT}' y='{y}' width='{WIDTH}' height='{HEIGHT}' class='frame'/>\n\
             <text x='{LEFT}' y='{:.0}'>{}</text>\n",
            y - 6.0,
            self.title
        );
        for part in 0..=4 {
            let part = f64::from(part) / 4.0;
            let (at, value) = (bottom - HEIGHT * part, self.top * part);
            let x = LEFT - 6.0;
            let _ = writeln!(svg, "<text x='{x}' y='{:.0}' text-anchor='end'>{value:.0}</text>", at + 4.0);
        }
        let mut second = 0.0;
        while second <= self.end {
            let x = LEFT + WIDTH * second / self.end;
            let _ = writeln!(
                svg,
                "<text x='{x:.0}' y='{:.0}' text-anchor='middle'>{second:.0} s</text>",
                bottom + 14.0
            );
            second += 1.0;
        }
        svg
    }

    fn curve(&self, points: impl Iterator<Item = (f64, f64)>, colour: &str) -> String {
        let mut path = String::new();
        for (at, value) in points.filter(|(at, _)| (0.0..=self.end).contains(at)) {
            let x = LEFT + WIDTH * at / self.end;
            let y = self.y0() + HEIGHT * (1.0 - (value / self.top).min(1.0));
            let _ = write!(path, "{x:.1},{y:.1} ");
        }
        format!("<polyline points='{path}' stroke='{colour}'/>\n")
    }
}

/// Returns the plot as SVG. `rate` is that of the bottleneck, Mb/s; `packet` is a full frame, bytes.
pub fn svg(run: &Run, rate: f64, packet: u64) -> String {
    let end = run.samples.last().map_or(1.0, |sample| sample.at).max(0.01);
    let flows = run.samples.iter().map(|sample| sample.flow + 1).max().unwrap_or(0);
    let packets = |bytes: u64| bytes as f64 / packet as f64;
    let longest = |queue: &[(u64, f64)]| queue.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
    let peak = run.intervals.iter().map(|interval| packets(longest(&interval.queue))).fold(4.0, f64::max);
    let height = TOP + 3.0 * (HEIGHT + GAP);
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {} {height}' font-family='sans-serif' font-size='11'>\n\
         <style>polyline{{fill:none;stroke-width:1}}.frame{{fill:none;stroke:#999}}</style>\n\
         <rect width='100%' height='100%' fill='white'/>\n",
        LEFT + WIDTH + 20.0
    );
    let rates = Panel { number: 0, title: "rate of each flow, Mb/s", end, top: rate * 1.5 };
    svg += &rates.frame();
    for flow in 0..flows {
        svg += &rates.curve(rate_of(run, flow).into_iter(), COLOURS[flow % COLOURS.len()]);
    }
    let queue = Panel { number: 1, title: "longest queue in 10 ms, packets", end, top: peak.ceil() };
    svg += &queue.frame();
    let lengths = run.intervals.iter().map(|interval| (interval.end, packets(longest(&interval.queue))));
    svg += &queue.curve(lengths, COLOURS[1]);
    let busy = Panel { number: 2, title: "utilisation over 10 ms, %", end, top: 100.0 };
    svg += &busy.frame();
    let shares = run.intervals.iter().map(|interval| {
        let time: f64 = interval.queue.iter().map(|(_, nanos)| nanos).sum();
        (interval.end, 100.0 * interval.busy / time.max(1.0))
    });
    svg += &busy.curve(shares, COLOURS[2]);
    svg + "</svg>\n"
}

/// Returns the pacing rate of a flow, Mb/s, over time. Without pacing, it is the rate of completion over 100 ms, because messages complete
/// as a whole.
fn rate_of(run: &Run, flow: usize) -> Vec<(f64, f64)> {
    let samples: Vec<_> = run.samples.iter().filter(|sample| sample.flow == flow).collect();
    let mut before = 0;
    let mut points = Vec::new();
    for (index, sample) in samples.iter().enumerate() {
        while sample.at - samples[before].at > 0.1 {
            before += 1;
        }
        let (time, bytes) = (sample.at - samples[before].at, sample.bytes - samples[before].bytes);
        let completed = if time > 0.0 { bytes as f64 * 8e-6 / time } else { 0.0 };
        let is_over = !sample.active && (index == 0 || bytes == 0);
        let rate = if is_over { 0.0 } else { sample.rate.unwrap_or(completed) };
        points.push((sample.at, rate));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Interval, Sample};

    #[test]
    fn a_picture_has_a_curve_for_each_flow_the_queue_and_the_utilisation() {
        let queue = vec![(0, 5e6), (8000, 5e6)];
        let sample = |at, flow, bytes| Sample { at, flow, active: true, rate: None, bytes };
        let run = Run {
            intervals: vec![Interval { end: 0.01, busy: 9e6, queue }],
            samples: vec![sample(0.0, 0, 0), sample(0.0, 1, 0), sample(0.1, 0, 1_250_000), sample(0.1, 1, 0)],
            pauses: Vec::new(),
        };
        let svg = svg(&run, 100.0, 1000);
        assert_eq!(svg.matches("<polyline").count(), 4);
        // 1.25 MB in 100 ms are 100 Mb/s, at two thirds of the height.
        assert_eq!(rate_of(&run, 0)[1], (0.1, 100.0));
        assert!(svg.contains("960.0,86.7"), "{svg}");
    }
}
