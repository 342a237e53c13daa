//! `ferroce top`: a live view of the queue pairs of running processes in a terminal.

mod rows;
mod screen;

use crate::failure::Failure;
use crate::{signals, units};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind};
use ratatui::crossterm::terminal;
use rows::{Column, Rows};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The smallest usable terminal, columns and lines.
const LEAST: (u16, u16) = (60, 8);

/// The interval between checks for a signal.
const LOOK: Duration = Duration::from_millis(100);

/// The command line of `ferroce top`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Process to observe [default: all that can be observed]
    pub pid: Option<u32>,
    /// Time between two updates, in seconds or with a unit: 500ms
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = units::seconds)]
    pub interval: Duration,
}

/// Shows the queue pairs until q is pressed or a signal arrives.
///
/// # Errors
/// Returns a failure if there is no terminal or it is too small, no process can be observed, or a signal arrives.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::run(
            "ferroce top needs a terminal, but standard input or output is not one; use ferroce why --json",
        ));
    }
    let (columns, lines) = terminal::size().map_err(|error| failed(&error))?;
    if columns < LEAST.0 || lines < LEAST.1 {
        return Err(Failure::run(format!(
            "the terminal has {columns} x {lines} characters, but ferroce top needs {} x {}; enlarge it, or use ferroce why",
            LEAST.0, LEAST.1
        )));
    }
    let mut rows = Rows::new(args.pid);
    rows.update()?;
    signals::end_at_hangup()?;
    signals::listen()?;
    let mut terminal = ratatui::try_init().map_err(|error| failed(&error))?;
    let shown = show(&mut terminal, &mut rows, args.interval);
    ratatui::restore();
    shown.map(|()| ExitCode::SUCCESS)
}

fn failed(error: &io::Error) -> Failure {
    Failure::run(format!("the terminal: {error}; use ferroce why"))
}

fn show(terminal: &mut ratatui::DefaultTerminal, rows: &mut Rows, interval: Duration) -> Result<(), Failure> {
    let mut due = Instant::now() + interval;
    loop {
        terminal.draw(|frame| screen::draw(frame, rows)).map_err(|error| failed(&error))?;
        signals::check()?;
        if event::poll(due.saturating_duration_since(Instant::now()).min(LOOK))
            .map_err(|error| failed(&error))?
            && let Event::Key(key) = event::read().map_err(|error| failed(&error))?
            && key.kind == KeyEventKind::Press
        {
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc | KeyCode::F(10) => return Ok(()),
                KeyCode::Char('>') | KeyCode::Right => rows.sort_by(rows.column.next()),
                KeyCode::Char('<') | KeyCode::Left => rows.sort_by(rows.column.previous()),
                KeyCode::Char('I') => rows.invert(),
                KeyCode::Down => rows.scroll(1),
                KeyCode::Up => rows.scroll(-1),
                _ => {}
            }
        }
        if Instant::now() >= due {
            due = Instant::now() + interval;
            // Even if no process is left, the next update may find one.
            let _ = rows.update();
        }
    }
}
