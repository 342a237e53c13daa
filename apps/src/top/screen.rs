//! Draws the screen of `ferroce top`: a sparkline of the payload rate, the cores, the queue pairs, a path and the keys.

use super::{Column, Rows};
use crate::units::counted;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Style, Stylize};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};

/// The height up to which a terminal shows no cores, lines.
const LOW: u16 = 8;

/// Draws the whole screen.
pub fn draw(frame: &mut Frame<'_>, rows: &Rows) {
    let one = Constraint::Length(1);
    // Cores use at most half of the lines above `LOW`.
    let shown = rows.cores.len().min(usize::from(frame.area().height.saturating_sub(LOW) / 2)) as u16;
    let parts =
        Layout::vertical([Constraint::Length(4), Constraint::Length(shown), Constraint::Min(1), one, one]);
    let [above, cores, middle, path, below] = parts.areas(frame.area());
    let newest = rows.rates.back().copied().unwrap_or(0) as f64 / 1e3;
    let silent = if rows.silent > 0 { format!(" ({} not answering)", rows.silent) } else { String::new() };
    let title = format!(
        "ferroce: {}{silent}, {}, {newest:.1} Mb/s of payload",
        counted(rows.processes, "process", "processes"),
        counted(rows.all.len(), "queue pair", "queue pairs")
    );
    let rates: Vec<u64> = rows.rates.iter().copied().collect();
    frame.render_widget(Sparkline::default().block(Block::bordered().title(title)).data(rates), above);
    frame.render_widget(Paragraph::new(rows.cores.join("\n")), cores);
    let heading = Column::ALL.map(|column| {
        let cell = Cell::from(column.heading());
        if column == rows.column {
            cell.style(Style::new().reversed().bold())
        } else {
            cell.style(Style::new().bold())
        }
    });
    let widths = [8, 12, 8, 16, 28, 10, 10, 10, 10].map(Constraint::Max);
    let lines = rows.all.iter().skip(rows.first).enumerate().map(|(place, row)| {
        let line = Row::new(Column::ALL.map(|column| row.cell(column)));
        if place == 0 { line.underlined() } else { line }
    });
    frame.render_widget(Table::new(lines, widths).header(Row::new(heading)), middle);
    let selected = rows.all.get(rows.first).map_or("", |row| row.path());
    frame.render_widget(Paragraph::new(selected), path);
    frame.render_widget(Paragraph::new("q quit   < > sort by   I invert   up down select").dim(), below);
}
