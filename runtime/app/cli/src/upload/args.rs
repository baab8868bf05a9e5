use clap::Args;

pub(crate) const EXAMPLES: &str = crate::help::with_plain_exit_codes!(
    "Examples:
  vcr upload                        # all pending files
  vcr upload --list
  vcr upload s3://lab/captures/     # pending files below this URL
  vcr upload --discard s3://lab/captures/monday.jsonl.zst"
);

/// Options of `vcr upload`.
#[derive(Debug, Args)]
pub(crate) struct UploadArgs {
    /// URLs of files or folders [default: all pending files].
    #[arg(value_name = "URL")]
    pub(crate) urls: Vec<String>,

    /// Print URLs, sizes and local files, and upload nothing.
    #[arg(long, conflicts_with_all = ["discard", "force"])]
    pub(crate) list: bool,

    /// Remove the local files and uploaded parts instead.
    #[arg(long, requires = "urls", conflicts_with = "force")]
    pub(crate) discard: bool,

    /// Replace existing objects.
    #[arg(long)]
    pub(crate) force: bool,

    /// Print no progress and no summary.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
