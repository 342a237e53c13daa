//! Writes measurements into the tables of a Markdown file. The first cell identifies a row; other rows are unchanged.

use std::path::Path;

/// Writes `rows` into the table of `file` between `<!-- TABLE -->` and `<!-- /TABLE -->`. Appends new rows.
///
/// # Errors
/// Returns an error if the file cannot be read or written, or lacks one of the marks.
pub fn update(file: &Path, table: &str, rows: &[Vec<String>]) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", file.display());
    let text = std::fs::read_to_string(file).map_err(failed)?;
    let text = merged(&text, table, rows).map_err(|reason| format!("{}: {reason}", file.display()))?;
    std::fs::write(file, text).map_err(failed)
}

fn merged(text: &str, table: &str, rows: &[Vec<String>]) -> Result<String, String> {
    let (begin, end) = (format!("<!-- {table} -->\n"), format!("<!-- /{table} -->\n"));
    let lacks = |mark: &str| format!("no line {}; put it where the table belongs", mark.trim_end());
    let (before, rest) = text.split_once(&begin).ok_or_else(|| lacks(&begin))?;
    let (lines, after) = rest.split_once(&end).ok_or_else(|| lacks(&end))?;
    let mut lines: Vec<String> = lines.lines().map(str::to_owned).collect();
    for row in rows {
        let line = format!("| {} |", row.join(" | "));
        let start = format!("| {} |", row.first().map_or("", String::as_str));
        match lines.iter_mut().find(|line| line.starts_with(&start)) {
            Some(old) => *old = line,
            None => lines.push(line),
        }
    }
    Ok(format!("{before}{begin}{}\n{end}{after}", lines.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::merged;

    const TEXT: &str = "a\n<!-- t -->\n| step | n |\n|---|---|\n| one | 1 |\n| two | 2 |\n<!-- /t -->\nb\n";

    fn row(name: &str, value: &str) -> Vec<String> {
        vec![name.into(), value.into()]
    }

    #[test]
    fn rows_are_replaced_by_name_and_new_ones_appended() {
        let text = merged(TEXT, "t", &[row("two", "3"), row("three", "4")]).unwrap();
        assert_eq!(text, TEXT.replace("| two | 2 |", "| two | 3 |\n| three | 4 |"));
        assert_eq!(merged(TEXT, "t", &[]).unwrap(), TEXT);
    }

    #[test]
    fn a_missing_mark_is_named() {
        assert!(merged(TEXT, "u", &[]).unwrap_err().contains("<!-- u -->"));
        assert!(merged(&TEXT.replace("/t", "/u"), "t", &[]).unwrap_err().contains("<!-- /t -->"));
    }
}
