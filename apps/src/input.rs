//! Reads text files and tables for the tools, with a bound on memory for any content.

use csv::StringRecord;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// The limit on the length of a text file, bytes.
const TEXT: u64 = 16 << 20;
/// The limit on the length of a table's row or of a line, bytes.
const ROW: usize = 64 << 10;

/// Reads a text file of at most 16 MiB.
///
/// # Errors
/// Returns an error if the file cannot be read, is longer than 16 MiB, or is not UTF-8.
pub fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(TEXT + 1).read_to_string(&mut text));
    read.map_err(unreadable)?;
    match text.len() as u64 <= TEXT {
        true => Ok(text),
        false => Err(io::Error::other(format!("longer than the limit of {TEXT} bytes"))),
    }
}

/// Adds a remedy to an error that occurred while reading a file.
fn unreadable(error: io::Error) -> io::Error {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "name a file that exists",
        io::ErrorKind::IsADirectory => "name a file in it",
        io::ErrorKind::PermissionDenied => "make it readable for this user",
        io::ErrorKind::InvalidData => "name a text file",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}; {remedy}"))
}

/// Opens a file, or standard input for `-`, and decompresses gzip.
///
/// # Errors
/// Returns an error if the input cannot be opened, or its first bytes cannot be read.
pub fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    let input: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(unreadable)?)
    };
    let mut input = BufReader::new(input);
    let gzip = input.fill_buf().map_err(unreadable)?.starts_with(&[0x1f, 0x8b]);
    Ok(if gzip { Box::new(MultiGzDecoder::new(input)) } else { Box::new(input) })
}

/// A CSV file, possibly compressed by gzip, that is read row by row. The limit on a row (64 KiB) bounds its memory.
pub struct Table {
    reader: csv::Reader<Bounded<Box<dyn Read>>>,
}

impl Table {
    /// Opens the file, or standard input for `-`.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(path: &Path) -> io::Result<Self> {
        open(path).map(Self::of)
    }

    /// Reads the table from `input`.
    pub fn of(input: Box<dyn Read>) -> Self {
        Self { reader: csv::Reader::from_reader(Bounded { input, left: ROW }) }
    }

    /// Returns the names of the columns, which are the first row.
    ///
    /// # Errors
    /// Returns an error if the row cannot be read or is longer than 64 KiB.
    pub fn header(&mut self) -> csv::Result<&StringRecord> {
        self.reader.headers()
    }

    /// Reads the next row. Returns false at the end of the file.
    ///
    /// # Errors
    /// Returns an error if the row cannot be read, is longer than 64 KiB, or has a different number of columns from the header.
    pub fn read(&mut self, row: &mut StringRecord) -> csv::Result<bool> {
        self.reader.get_mut().left = ROW;
        self.reader.read_record(row)
    }
}

/// A reader that fails after `left` bytes.
struct Bounded<R> {
    input: R,
    left: usize,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(self.left);
        if most == 0 && !into.is_empty() {
            return Err(io::Error::other(format!("a row of more than {ROW} bytes: not a table")));
        }
        let count = self.input.read(&mut into[..most])?;
        self.left -= count;
        Ok(count)
    }
}

/// Reads a line without its newline. Returns false at the end of the input. A line of more than 64 KiB is returned in parts.
///
/// # Errors
/// Returns an error if the input cannot be read.
pub fn line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    from.by_ref().take(ROW as u64).read_until(b'\n', line)?;
    let is_any = !line.is_empty();
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok(is_any)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn rows(bytes: &[u8]) -> csv::Result<usize> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table");
        std::fs::write(&path, bytes).unwrap();
        let (mut table, mut row, mut count) = (Table::open(&path)?, StringRecord::new(), 0);
        table.header()?;
        while table.read(&mut row)? {
            count += 1;
        }
        Ok(count)
    }

    #[test]
    fn a_long_table_is_read_and_a_long_row_is_refused() {
        let many = "one,two\n".repeat(100_000);
        assert_eq!(rows(many.as_bytes()).unwrap(), 99_999);
        let quoted = format!("one,two\n\"{}\",2\n", "x\n".repeat(ROW));
        for long in [vec![0; 2 * ROW], [b"a\n", &vec![b'x'; 2 * ROW][..]].concat(), quoted.into_bytes()] {
            let error = rows(&long).unwrap_err().to_string();
            assert!(error.contains("65536"), "{error}");
        }
    }

    #[test]
    fn unpacking_stops_at_a_row_that_is_too_long() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&vec![0; 100 * ROW]).unwrap();
        assert!(rows(&packed.finish().unwrap()).unwrap_err().to_string().contains("65536"));
    }

    #[test]
    fn a_text_that_is_too_long_is_refused() {
        assert!(text(Path::new("/dev/zero")).unwrap_err().to_string().contains("longer than"));
        assert!(text(Path::new("/dev/null")).unwrap().is_empty());
    }

    #[test]
    fn a_long_line_is_read_in_parts() {
        let text = [&vec![b'x'; ROW + 1][..], b"\n\nend"].concat();
        let (mut from, mut part, mut lengths) = (&text[..], Vec::new(), Vec::new());
        while line(&mut from, &mut part).unwrap() {
            lengths.push(part.len());
        }
        assert_eq!(lengths, [ROW, 1, 0, 3]);
    }
}
