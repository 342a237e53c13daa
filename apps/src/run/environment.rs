//! `ferroce env`: prints the variables that make unmodified RDMA programs use Ferroce, for shells, test suites and systemd units.

use super::library;
use super::settings::Settings;
use crate::failure::Failure;
use std::ffi::OsString;
use std::process::ExitCode;

/// The command line of `ferroce env`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  For every RDMA program that this shell starts:
    eval \"$(ferroce env --port eth0)\"
    ib_write_bw -F 10.0.0.1
  For a systemd unit's EnvironmentFile=, `podman run --env-file`, or later steps of a GitHub workflow:
    ferroce env --port eth0 --plain > rdma.env
    ferroce env --port eth0 --plain >> \"$GITHUB_ENV\"
  With Open MPI, which passes variables on by name:
    mpirun -x LD_LIBRARY_PATH -x FERROCE_PORT program

A program that is given capabilities by setcap, or is setuid, ignores LD_LIBRARY_PATH and these variables. `ferroce run` passes capabilities on instead.")]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    settings: Settings,
    /// Print unquoted NAME=value lines instead of commands for a POSIX shell
    #[arg(long)]
    plain: bool,
}

/// Prints the variables.
///
/// # Errors
/// Returns a failure if the libraries are missing, a setting is wrong, or a value cannot be written as text.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let variables = args.settings.variables(&library::folder()?)?;
    args.settings.warn_without_port();
    let lines: Result<Vec<_>, _> =
        variables.into_iter().map(|(name, value)| line(name, value, args.plain)).collect();
    outln!("{}", lines?.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn line(name: &str, value: OsString, plain: bool) -> Result<String, Failure> {
    let wrong = |value: &str| {
        Failure::usage(format!("{name} {value:?}: the value cannot be printed; use one line of UTF-8 text"))
    };
    let value = value.into_string().map_err(|value| wrong(&value.to_string_lossy()))?;
    match plain {
        _ if value.contains(['\n', '\0']) => Err(wrong(&value)),
        true => Ok(format!("{name}={value}")),
        // With semicolons, `eval $(ferroce env)` also works without quotes, which joins the lines.
        false => Ok(format!("export {name}='{}';", value.replace('\'', r"'\''"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_leave_its_quotes() {
        let shell = |value: &str| line("A", value.into(), false).unwrap();
        assert_eq!(shell("it's; $(x)"), r"export A='it'\''s; $(x)';");
        assert_eq!(line("A", "it's".into(), true).unwrap(), "A=it's");
    }

    #[test]
    fn a_value_of_two_lines_is_refused() {
        for plain in [false, true] {
            let error = line("FERROCE_PORT", "a\nb".into(), plain).unwrap_err().to_string();
            assert!(error.contains("FERROCE_PORT") && error.contains("one line"), "{error}");
        }
    }
}
