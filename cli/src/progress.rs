//! A progress bar, on a terminal only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over `length` of something. On standard error, and nowhere at all if that is no terminal.
pub(crate) fn bar(length: u64, unit: &str, message: String) -> ProgressBar {
    let template = format!("{{msg}}  {{bar:32}}  {{human_pos}}/{{human_len}} {unit}, {{eta}} left");
    let style =
        ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr_with_hz(10))
        .with_style(style)
        .with_message(message);
    if !bar.is_hidden() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}
