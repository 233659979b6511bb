//! The picture: acceptance by position, and tokens per step over the turns, one line a configuration.

use std::fmt::Write;

use super::{Run, label};
use crate::replay::{Outcome, TurnOutcome};

/// Lines after these repeat their colours, dashed. Told apart with any common colour blindness.
const COLOURS: [&str; 8] = [
    "#2563eb", "#d97706", "#059669", "#be185d", "#7c3aed", "#0891b2", "#65a30d", "#475569",
];
const WIDTH: f64 = 1120.0;
const LEGEND_ROW: f64 = 22.0;

/// The whole SVG.
pub(crate) fn svg(run: &Run, outcomes: &[Outcome]) -> String {
    let configs: Vec<_> = outcomes
        .iter()
        .map(|outcome| outcome.config.clone())
        .collect();
    let entries: Vec<String> = outcomes
        .iter()
        .map(|outcome| {
            let label = label(&outcome.config, &configs);
            match outcome.total.tokens_per_step() {
                Some(tokens) => format!("{label}: {tokens:.3} tokens/step"),
                None => label,
            }
        })
        .collect();
    let (legend, legend_rows) = legend(&entries, 104.0);
    let top = 104.0 + legend_rows as f64 * LEGEND_ROW + 30.0;
    let height = top + 320.0 + 64.0;

    let mut svg = String::new();
    let backend = outcomes.first().map_or("", |outcome| outcome.backend);
    _ = write!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" font-family="Inter, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', sans-serif" font-size="13" fill="#334155">
<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>
<text x="40" y="46" font-size="20" font-weight="600" fill="#0f172a">Suffix drafting on {files}</text>
<text x="40" y="70" fill="#64748b">{summary} · {backend}</text>
{legend}"##,
        files = escaped(&files(run)),
        summary = escaped(&run.summary()),
    );
    svg += &acceptance_panel(outcomes, top);
    svg += &turns_panel(run, outcomes, top);
    svg += "</svg>\n";
    svg
}

fn acceptance_panel(outcomes: &[Outcome], top: f64) -> String {
    let positions = outcomes
        .iter()
        .map(|outcome| outcome.config.num_draft_tokens)
        .max()
        .unwrap_or(1);
    let lines: Vec<Vec<(f64, f64)>> = outcomes
        .iter()
        .map(|outcome| {
            let shares = outcome.total.acceptance_by_position();
            let points = shares.into_iter().enumerate();
            points
                .filter_map(|(index, share)| Some((index as f64 + 1.0, 100.0 * share?)))
                .collect()
        })
        .collect();
    let highest = lines
        .iter()
        .flatten()
        .map(|point| point.1)
        .fold(10.0, f64::max);
    let panel = Panel {
        title: "Acceptance by position, of the tokens drafted there",
        x_label: "position in the draft",
        unit: "%",
        left: 84.0,
        top,
        width: 400.0,
        x: (1.0, (positions as f64).max(2.0)),
        y: (0.0, nice_ceiling(highest)),
    };
    let mut svg = panel.frame();
    for (index, points) in lines.iter().enumerate() {
        svg += &panel.line(points, index);
        if positions <= 24 {
            svg += &panel.dots(points, index);
        }
    }
    svg
}

fn turns_panel(run: &Run, outcomes: &[Outcome], top: f64) -> String {
    let turns = outcomes
        .iter()
        .map(|outcome| outcome.turns.len())
        .max()
        .unwrap_or(0);
    let window = (turns / 30).max(1) | 1;
    let lines: Vec<Vec<(f64, f64)>> = outcomes
        .iter()
        .map(|outcome| moving_mean(&outcome.turns, window))
        .collect();
    let highest = lines
        .iter()
        .flatten()
        .map(|point| point.1)
        .fold(1.5, f64::max);
    let panel = Panel {
        title: "Tokens per step over the turns",
        x_label: &match window {
            1 => "turn (dotted: over all turns)".to_owned(),
            _ => {
                format!("turn, in the order replayed (mean over {window} turns; dotted: over all)")
            }
        },
        unit: "",
        left: 588.0,
        top,
        width: 492.0,
        x: (1.0, (turns as f64).max(2.0)),
        y: (0.0, nice_ceiling(highest)),
    };
    let mut svg = panel.frame();
    if let (1, Some(first)) = (run.concurrency, outcomes.first()) {
        svg += &panel.boundaries(&first.turns);
    }
    for (index, (points, outcome)) in lines.iter().zip(outcomes).enumerate() {
        if let Some(mean) = outcome.total.tokens_per_step() {
            svg += &panel.level(mean, index);
        }
        svg += &panel.line(points, index);
        if points.len() <= 24 {
            svg += &panel.dots(points, index);
        }
    }
    svg
}

/// Tokens per step over a window around each turn. Turns that needed no step give no point of their own.
fn moving_mean(turns: &[TurnOutcome], window: usize) -> Vec<(f64, f64)> {
    let most_points = 400;
    let stride = turns.len().div_ceil(most_points).max(1);
    let points = (0..turns.len()).step_by(stride).filter_map(|middle| {
        let around =
            &turns[middle.saturating_sub(window / 2)..(middle + window / 2 + 1).min(turns.len())];
        let tokens: u64 = around.iter().map(|turn| turn.tokens).sum();
        let steps: u64 = around.iter().map(|turn| turn.steps).sum();
        (steps > 0).then(|| (middle as f64 + 1.0, tokens as f64 / steps as f64))
    });
    points.collect()
}

/// One pair of axes and the mapping onto them.
struct Panel<'a> {
    title: &'a str,
    x_label: &'a str,
    unit: &'a str,
    left: f64,
    top: f64,
    width: f64,
    x: (f64, f64),
    y: (f64, f64),
}

impl Panel<'_> {
    const HEIGHT: f64 = 320.0;

    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let along = (x - self.x.0) / (self.x.1 - self.x.0);
        let up = (y - self.y.0) / (self.y.1 - self.y.0);
        (
            self.left + along * self.width,
            self.top + (1.0 - up) * Self::HEIGHT,
        )
    }

    /// Title, grid, ticks and labels.
    fn frame(&self) -> String {
        let (left, right, bottom) = (self.left, self.left + self.width, self.top + Self::HEIGHT);
        let mut svg = format!(
            "<text x=\"{left}\" y=\"{}\" font-size=\"14\" font-weight=\"600\" fill=\"#0f172a\">{}</text>\n",
            self.top - 16.0,
            self.title
        );
        for tick in ticks(self.y.0, self.y.1, 6.0, 0.0) {
            let (_, y) = self.place((self.x.0, tick));
            _ = writeln!(
                svg,
                "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"#e2e8f0\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}{}</text>",
                left - 10.0,
                y + 4.5,
                shown(tick),
                self.unit
            );
        }
        for tick in x_ticks(self.x.1) {
            let (x, _) = self.place((tick, 0.0));
            _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {bottom:.1}v5\" stroke=\"#94a3b8\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                bottom + 20.0,
                shown(tick)
            );
        }
        _ = writeln!(
            svg,
            "<path d=\"M{left:.1} {bottom:.1}H{right:.1}\" stroke=\"#94a3b8\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#64748b\">{}</text>",
            left + self.width / 2.0,
            bottom + 44.0,
            self.x_label
        );
        svg
    }

    fn line(&self, points: &[(f64, f64)], index: usize) -> String {
        if points.is_empty() {
            return String::new();
        }
        let mut path = String::new();
        for (number, &point) in points.iter().enumerate() {
            let (x, y) = self.place(point);
            _ = write!(path, "{}{x:.1} {y:.1}", if number == 0 { "M" } else { "L" });
        }
        let style = stroke(index);
        format!(
            "<path d=\"{path}\" fill=\"none\" stroke-width=\"2\" stroke-linejoin=\"round\" {style}/>\n"
        )
    }

    fn dots(&self, points: &[(f64, f64)], index: usize) -> String {
        let mut svg = String::new();
        for &point in points {
            let (x, y) = self.place(point);
            let colour = COLOURS[index % COLOURS.len()];
            _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            );
        }
        svg
    }

    /// A thin line across, at a configuration's mean.
    fn level(&self, value: f64, index: usize) -> String {
        let (_, y) = self.place((self.x.0, value));
        let colour = COLOURS[index % COLOURS.len()];
        let (left, right) = (self.left, self.left + self.width);
        format!(
            "<path d=\"M{left:.1} {y:.1}H{right:.1}\" stroke=\"{colour}\" stroke-opacity=\"0.45\" stroke-dasharray=\"2 4\"/>\n"
        )
    }

    /// Faint lines where one conversation ends and the next begins.
    fn boundaries(&self, turns: &[TurnOutcome]) -> String {
        let starts =
            (1..turns.len()).filter(|&turn| turns[turn].session != turns[turn - 1].session);
        let starts: Vec<usize> = starts.collect();
        if starts.len() > 60 {
            return String::new();
        }
        let mut svg = String::new();
        for start in starts {
            let (x, _) = self.place((start as f64 + 0.5, 0.0));
            let (top, bottom) = (self.top, self.top + Self::HEIGHT);
            _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke=\"#cbd5e1\"><title>next conversation</title></path>"
            );
        }
        svg
    }
}

/// The legend from `y` on, and how many rows it takes.
fn legend(entries: &[String], y: f64) -> (String, usize) {
    let (mut svg, mut x, mut row) = (String::new(), 40.0, 0);
    for (index, entry) in entries.iter().enumerate() {
        let width = 44.0 + 7.4 * entry.chars().count() as f64;
        if x + width > WIDTH - 40.0 && x > 40.0 {
            (x, row) = (40.0, row + 1);
        }
        let line_y = y + row as f64 * LEGEND_ROW;
        _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {:.1}h22\" stroke-width=\"3\" {}/><text x=\"{:.1}\" y=\"{line_y:.1}\">{}</text>",
            line_y - 4.5,
            stroke(index),
            x + 30.0,
            escaped(entry)
        );
        x += width;
    }
    (svg, row + 1)
}

fn stroke(index: usize) -> String {
    let colour = COLOURS[index % COLOURS.len()];
    match index / COLOURS.len() {
        0 => format!("stroke=\"{colour}\""),
        round => format!(
            "stroke=\"{colour}\" stroke-dasharray=\"{} 3\"",
            9 / round.min(4)
        ),
    }
}

/// The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `raw`, and at least `least`.
fn step(raw: f64, least: f64) -> f64 {
    let power = 10f64.powf(raw.max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    let step = steps
        .into_iter()
        .find(|&step| step >= raw * 0.999)
        .unwrap_or(10.0 * power);
    step.max(least)
}

fn ticks(low: f64, high: f64, count: f64, least: f64) -> Vec<f64> {
    let step = step((high - low) / count, least);
    let first = (low / step).ceil() as i64;
    let last = (high / step * 1.000_001).floor() as i64;
    (first..=last).map(|tick| tick as f64 * step).collect()
}

/// Positions and turns count from 1: that tick stands in for 0.
fn x_ticks(high: f64) -> Vec<f64> {
    if high <= 16.0 {
        return (1..=high as u32).map(f64::from).collect();
    }
    let step = step(high / 8.0, 1.0).ceil();
    let multiples = (1..)
        .map(|index| f64::from(index) * step)
        .take_while(|&tick| tick <= high);
    std::iter::once(1.0).chain(multiples).collect()
}

fn nice_ceiling(highest: f64) -> f64 {
    let step = step(highest / 6.0, 0.0);
    (highest / step).ceil() * step
}

fn shown(tick: f64) -> String {
    format!("{:.4}", tick)
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

fn files(run: &Run) -> String {
    let name = |file: &String| file.rsplit(['/', '\\']).next().unwrap_or(file).to_owned();
    match run.files.as_slice() {
        [one] => name(one),
        [first, others @ ..] => format!("{} and {} more", name(first), others.len()),
        [] => String::new(),
    }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            // XML knows no other control characters, escaped or not.
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(
            ticks(0.0, 50.0, 6.0, 0.0),
            [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
        );
        assert_eq!(ticks(0.0, 3.0, 6.0, 0.0).len(), 7);
        assert_eq!(x_ticks(5.0), [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(
            x_ticks(637.0),
            [1.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0]
        );
        assert_eq!((nice_ceiling(47.3), nice_ceiling(4.1)), (50.0, 5.0));
        assert_eq!([0.0, 0.5, 100.0].map(shown), ["0", "0.5", "100"]);
    }

    #[test]
    fn the_moving_mean_weighs_by_steps() {
        let turn = |tokens, steps| TurnOutcome {
            session: 0,
            tokens,
            steps,
        };
        let turns = [turn(4, 1), turn(0, 0), turn(8, 3)];
        assert_eq!(
            moving_mean(&turns, 3),
            [(1.0, 4.0), (2.0, 3.0), (3.0, 8.0 / 3.0)]
        );
        assert_eq!(moving_mean(&turns, 1), [(1.0, 4.0), (3.0, 8.0 / 3.0)]);
        assert_eq!(moving_mean(&[], 1), []);
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(escaped("a<b>&\u{7}"), "a&lt;b&gt;&amp;\u{fffd}");
    }
}
