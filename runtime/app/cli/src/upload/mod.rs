//! `vcr upload`: uploads outputs that an earlier command could not upload.

pub(crate) mod args;

use std::io::{self, Write as _};

use vcr_base::output::{Pending, pending};

use crate::exit::{Exit, eprint_line, printed};
use crate::refusal::Refusal;
use crate::terminal::text::counted;
use args::UploadArgs;

pub(crate) fn upload(args: &UploadArgs) -> Exit {
    let found = match pending() {
        Ok(found) => found,
        Err(error) => return Refusal::input(error.to_string()).print(),
    };
    let is_named = |file: &dyn Pending| args.urls.is_empty() || args.urls.iter().any(|url| is_at(file.url(), url));
    let files: Vec<Box<dyn Pending>> = found.into_iter().filter(|file| is_named(&**file)).collect();
    if args.list {
        return list(&files);
    }
    match work(args, files) {
        Ok(summary) => {
            if !args.quiet {
                eprint_line(format_args!("{summary}"));
            }
            Exit::Passed
        }
        Err(refusal) => refusal.print(),
    }
}

/// Whether a URL equals `named` or is below it.
fn is_at(url: &str, named: &str) -> bool {
    let folder = named.trim_end_matches('/');
    url == named || url.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

fn list(files: &[Box<dyn Pending>]) -> Exit {
    let mut out = io::stdout().lock();
    let mut waiting = files.iter().filter(|file| !file.is_sent());
    let written = waiting.try_for_each(|file| {
        let bytes = std::fs::metadata(file.file())?.len();
        writeln!(out, "{}\t{bytes} bytes\t{}", file.url(), file.file().display())
    });
    printed(written, Exit::Passed)
}

/// Uploads or discards all files, even if one fails. Returns a summary.
fn work(args: &UploadArgs, files: Vec<Box<dyn Pending>>) -> Result<String, Refusal> {
    let (mut done, mut refused) = (0, Vec::new());
    for file in files {
        let (is_sent, url) = (file.is_sent(), file.url().to_owned());
        match if args.discard { discard(file, &url) } else { send(args, file, &url) } {
            Ok(()) => done += u32::from(!is_sent),
            Err(refusal) => refused.push(refusal),
        }
    }
    let left = refused.len();
    match refused.into_iter().next() {
        Some(first) if left > 1 => Err(first.of(&format!("{left} files are not uploaded"))),
        Some(first) => Err(first),
        None => Ok(format!("{} {}", counted(done, "file"), if args.discard { "discarded" } else { "uploaded" })),
    }
}

fn send(args: &UploadArgs, mut file: Box<dyn Pending>, url: &str) -> Result<(), Refusal> {
    if args.force {
        file.replace();
    }
    if !args.quiet && !file.is_sent() {
        eprint_line(format_args!("{url}"));
    }
    let kept = file.file().display().to_string();
    match file.upload() {
        Ok(()) => file.remove().map_err(|error| Refusal::input(format!("cannot remove `{kept}`: {error}"))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(Refusal::input(format!("cannot write `{url}`: the file exists already; the other is `{kept}`"))
                .hint("replace it with --force, or remove the other with --discard"))
        }
        Err(error) => {
            let why = vcr_base::output::cause(&url, &error);
            Err(Refusal::input(format!("cannot upload `{url}`: {why}; the file is kept as `{kept}`"))
                .hint("run `vcr upload` again, which continues"))
        }
    }
}

fn discard(file: Box<dyn Pending>, url: &str) -> Result<(), Refusal> {
    file.discard().map_err(|error| Refusal::input(format!("cannot discard the file for `{url}`: {error}")))
}

#[cfg(test)]
mod tests {
    use super::is_at;

    #[test]
    fn a_url_names_itself_and_what_is_below() {
        for (named, is_named) in [
            ("s3://a/b/c.jsonl", true),
            ("s3://a/b", true),
            ("s3://a/b/", true),
            ("s3://a/b/c", false),
            ("s3://a/B", false),
        ] {
            assert_eq!(is_at("s3://a/b/c.jsonl", named), is_named, "{named}");
        }
    }
}
