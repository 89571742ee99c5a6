//! The command line of the guest.

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::time::Duration;

use b4_guest::{connect, install, launch, messages, server, sys};
use rustix::io::fcntl_dupfd_cloexec;

const USAGE: i32 = 64;
const HELP: &str =
    "usage: b4-guest serve --root DIR [--stream FD] [--listen] [--closed-to ADDRESS PORT]
       b4-guest read --root DIR [--stream FD]
       b4-guest connect [--timeout-ms N] [--lasting]
       b4-guest install FILE
       b4-guest launch ...
       b4-guest version";

fn main() {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    std::process::exit(dispatch(&args));
}

fn dispatch(args: &[OsString]) -> i32 {
    let Some((command, rest)) = args.split_first() else {
        return complain(USAGE, HELP);
    };
    match command.to_str() {
        Some(mode @ ("serve" | "read")) => match serve_options(rest, mode == "read") {
            Ok(options) => {
                server::run(options).map_or_else(|(code, reason)| complain(code, &reason), |()| 0)
            }
            Err(reason) => complain(USAGE, &reason),
        },
        Some("connect") => match connect_options(rest) {
            Some((timeout, lasting)) => connect::relay(timeout, lasting)
                .map_or_else(|(code, reason)| complain(code, &reason), |()| 0),
            None => complain(USAGE, HELP),
        },
        Some("install") => match rest {
            [target] => install::install(target.as_ref())
                .map_or_else(|error| complain(73, &error.to_string()), |()| 0),
            _ => complain(USAGE, HELP),
        },
        Some("launch") => launch::main(rest),
        Some("version") => {
            println!(
                "b4-guest {} protocol {}",
                env!("CARGO_PKG_VERSION"),
                messages::PROTOCOL
            );
            0
        }
        _ => complain(USAGE, HELP),
    }
}

fn complain(code: i32, reason: &str) -> i32 {
    eprintln!("b4-guest: {reason}");
    code
}

fn serve_options(args: &[OsString], reader: bool) -> Result<server::Options, String> {
    let (mut root, mut closed_to) = (None, None);
    let mut stream = None;
    let (mut listen, mut without_openat2, mut without_subreaper) = (false, false, false);
    let mut args = args.iter().map(OsString::as_os_str);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--root") => root = args.next().map(OsStr::to_owned),
            Some("--stream") => {
                stream = Some(
                    args.next()
                        .and_then(number)
                        .ok_or("--stream takes the number of a descriptor")?,
                );
            }
            Some("--closed-to") => {
                let address: Option<IpAddr> = args.next().and_then(number);
                let port: Option<u16> = args.next().and_then(number);
                let (Some(address), Some(port)) = (address, port) else {
                    return Err("--closed-to takes an address and a port".to_owned());
                };
                closed_to = Some((address, port).into());
            }
            Some("--listen") if !reader => listen = true,
            Some("--no-openat2") => without_openat2 = true,
            Some("--no-subreaper") => without_subreaper = true,
            _ => return Err(HELP.to_owned()),
        }
    }
    let root = root.ok_or("--root takes the folder of the workspace")?;
    if stream.is_none() && !listen && !reader {
        return Err("serve needs --stream, --listen or both".to_owned());
    }
    let stream = match stream {
        None if reader => Some(connect::relayed().map_err(|errno| errno.to_string())?),
        None => None,
        Some(fd) => {
            let inherited =
                sys::inherited(fd).map_err(|error| format!("--stream {fd}: {error}"))?;
            rustix::net::getsockname(&inherited)
                .map_err(|errno| format!("--stream {fd} is no socket: {errno}"))?;
            // Above the standard streams, which `serve` settles for itself.
            Some(fcntl_dupfd_cloexec(&inherited, 3).map_err(|errno| errno.to_string())?)
        }
    };
    Ok(server::Options {
        root,
        stream,
        listen,
        closed_to,
        reader,
        without_openat2,
        without_subreaper,
    })
}

fn connect_options(args: &[OsString]) -> Option<(Duration, bool)> {
    let (mut timeout, mut lasting) = (Duration::from_secs(5), false);
    let mut args = args.iter().map(OsString::as_os_str);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--timeout-ms") => timeout = Duration::from_millis(number(args.next()?)?),
            Some("--lasting") => lasting = true,
            _ => return None,
        }
    }
    Some((timeout, lasting))
}

fn number<T: std::str::FromStr>(text: &OsStr) -> Option<T> {
    text.to_str()?.parse().ok()
}
