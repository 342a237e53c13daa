//! Draws the screen of `ferroce top`: a sparkline of the payload rate, the cores, the queue pairs, a path and the keys.

use super::{Column, Rows};
use crate::units::counted;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table};

/// The height up to which the screen has no cores, lines.
const LOW: u16 = 8;

/// Returns the colour of a waiting state. Red: the path or the peer fails. Yellow: this host is the limit. Cyan: the queue pair may not
/// send more. Green: its requests are in flight. Grey: it has none.
fn colour(state: &str) -> Color {
    match state {
        "loss-recovery" | "silence" | "receiver-not-ready" => Color::Red,
        "turn" | "port-full" | "pool-dry" | "completions-unpolled" => Color::Yellow,
        "pacing" | "window" | "read-limit" | "fence" => Color::Cyan,
        "answer" => Color::Green,
        _ => Color::DarkGray,
    }
}

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
    let widths = [8, 12, 8, 16, 9, 26, 9, 9, 10, 10, 9].map(Constraint::Max);
    let lines = rows.all.iter().skip(rows.first).enumerate().map(|(place, row)| {
        let line = Row::new(Column::ALL.map(|column| {
            let cell = Cell::from(row.cell(column));
            if column == Column::Waiting { cell.fg(colour(row.waiting())) } else { cell }
        }));
        if place == 0 { line.underlined() } else { line }
    });
    frame.render_widget(Table::new(lines, widths).header(Row::new(heading)), middle);
    let selected = rows.all.get(rows.first).map_or("", |row| row.path());
    frame.render_widget(Paragraph::new(selected), path);
    frame.render_widget(Paragraph::new("q quit   < > sort by   I invert   up down select").dim(), below);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use verbs::observe::Waiting;

    #[test]
    fn every_waiting_state_has_a_colour_and_only_idle_is_grey() {
        for state in Waiting::ALL {
            let is_grey = colour(state.name()) == Color::DarkGray;
            assert_eq!(is_grey, *state == Waiting::Idle, "{}", state.name());
        }
    }

    #[test]
    fn the_waiting_state_is_coloured_and_the_columns_have_units() {
        let mut rows = Rows::new(None);
        rows.all.push(super::super::rows::Row::default());
        let mut terminal = Terminal::new(TestBackend::new(140, 12)).unwrap();
        terminal.draw(|frame| draw(frame, &rows)).unwrap();
        let buffer = terminal.backend().buffer();
        let text: String = buffer.content.iter().map(|cell| cell.symbol()).collect();
        for heading in ["CC ", "Mb/s", "WINDOW pkt"] {
            assert!(text.contains(heading), "{text}");
        }
        assert!(buffer.content.iter().any(|cell| cell.symbol() == "%" && cell.fg == Color::DarkGray));
    }
}
