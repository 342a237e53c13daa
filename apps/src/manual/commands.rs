//! A man page for each command, and one Markdown page for all commands, from clap's description. Commands with the same flags share a
//! section of that page.

use super::as_is;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// Returns the man pages of the program and of each command that its help shows, with their file names.
pub fn pages(command: &Command) -> Vec<(String, Vec<u8>)> {
    let mut built = command.clone().disable_help_subcommand(true);
    built.build();
    let commands = shown(&built).cloned().chain([built.clone()]);
    commands.map(|command| (format!("{}.1", name(&command)), page(command))).collect()
}

/// Returns the commands that are not hidden.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn page(command: Command) -> Vec<u8> {
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let title = name(&command).to_owned();
    let man = Man::new(command.clone().after_help(None::<&'static str>))
        .title(title.to_uppercase())
        // Not empty: clap omits an empty date, and the source takes its place.
        .date(" ")
        .source(format!("ferroce {}", env!("CARGO_PKG_VERSION")))
        .manual("Ferroce");
    let mut page = Vec::new();
    let mut write = |part: fn(&Man, &mut dyn std::io::Write) -> std::io::Result<()>| {
        // Writing to a vector cannot fail.
        let _ = part(&man, &mut page);
    };
    write(Man::render_title);
    write(Man::render_name_section);
    write(Man::render_synopsis_section);
    write(Man::render_description_section);
    write(Man::render_options_section);
    if command.has_subcommands() {
        write(Man::render_subcommands_section);
    }
    let mut rest = Roff::new();
    notes(&mut rest, &examples);
    if title != "ferroce" {
        rest.control("SH", ["SEE ALSO"]);
        rest.text(vec![roman("ferroce(1), ferroce.toml(5)")]);
    }
    page.extend(rest.to_roff().into_bytes());
    page
}

/// Writes the notes of a command's help: indented lines are examples, other lines are paragraphs.
fn notes(roff: &mut Roff, text: &str) {
    if text.is_empty() {
        return;
    }
    roff.control("SH", ["NOTES"]);
    let mut example = String::new();
    for line in text.lines() {
        if line.starts_with(' ') {
            example += line;
            example.push('\n');
            continue;
        }
        if !example.is_empty() {
            as_is(roff, &std::mem::take(&mut example));
        }
        match line {
            "" => roff.control("PP", []),
            line => roff.text(vec![roman(line)]),
        };
    }
    if !example.is_empty() {
        as_is(roff, &example);
    }
}

/// Returns the page `docs/reference/commands.md`.
pub fn reference(command: &Command) -> Vec<u8> {
    let mut page = "# Commands\n\n<!-- FERROCE_WRITE_REFERENCE=1 cargo test --workspace --test manual writes this page. -->\n\nEach \
                    command also has a man page, such as `man ferroce-write-bw`.\n"
        .to_owned();
    let mut built = command.clone().disable_help_subcommand(true).term_width(110);
    built.build();
    let mut known: Vec<(String, String)> = Vec::new();
    for command in shown(&built) {
        let name = name(command).replacen('-', " ", 1);
        let help = command.clone().render_help().to_string();
        let help = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        let (about, flags) = help.split_once("\n\n").unwrap_or((&help, ""));
        let flags = flags.split("\nExamples:").next().unwrap_or(flags).replace(&name, "ferroce TOOL");
        page += &format!("\n## `{name}`\n\n");
        match known.iter().find(|(_, others)| *others == flags) {
            Some((twin, _)) => page += &format!("{about}. Its flags are those of `{twin}`.\n"),
            None => page += &format!("```text\n{}\n```\n", help.trim_end()),
        }
        known.push((name, flags));
    }
    page.into_bytes()
}
