//! A picture with two logarithmic axes, for light and dark pages.

use std::fmt::Write;

/// A picture.
pub(super) struct Picture {
    pub(super) title: &'static str,
    /// Where the figures come from.
    pub(super) source: String,
    pub(super) x_label: &'static str,
    pub(super) lines: Vec<Line>,
}

/// Microseconds over a quantity, by us and by the peer; by rising quantity.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) ours: Vec<(f64, f64)>,
    pub(super) peer: Vec<(f64, f64)>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
/// Of the plane.
const LEFT: f64 = 76.0;
const RIGHT: f64 = 730.0;
const TOP: f64 = 116.0;
const BOTTOM: f64 = 396.0;
/// Labels that would stand closer are left out.
const LABEL_WIDTH: f64 = 52.0;

/// Told apart with any common colour blindness, on white and on black.
const COLOURS: usize = 5;
const STYLE: &str = "\
text{fill:#334155}.title{font-size:17px;font-weight:600;fill:#0f172a}.note{fill:#64748b}\
.paper{fill:#fff}.grid{stroke:#e2e8f0}.axis{stroke:#94a3b8}\
.line{fill:none;stroke-width:2;stroke-linejoin:round}.peer{stroke-dasharray:6 4}\
.c0{stroke:#2563eb}.c1{stroke:#d97706}.c2{stroke:#059669}.c3{stroke:#be185d}.c4{stroke:#7c3aed}\
@media(prefers-color-scheme:dark){text{fill:#cbd5e1}.title{fill:#f1f5f9}.note{fill:#94a3b8}\
.paper{fill:#0d1117}.grid{stroke:#1e293b}.axis{stroke:#64748b}\
.c0{stroke:#60a5fa}.c1{stroke:#fbbf24}.c2{stroke:#34d399}.c3{stroke:#f472b6}.c4{stroke:#a78bfa}}";

impl Picture {
    pub(super) fn svg(&self) -> String {
        let points = || {
            self.lines
                .iter()
                .flat_map(|line| line.ours.iter().chain(&line.peer))
        };
        let axes = Axes {
            x: Axis::of(points().map(|point| point.0), (LEFT + 12.0, RIGHT - 12.0)),
            y: Axis::of(points().map(|point| point.1), (BOTTOM - 10.0, TOP + 10.0)),
        };
        let has_peer = self.lines.iter().any(|line| !line.peer.is_empty());
        let dashed = match has_peer {
            true => "; dashed: vLLM's Triton kernels",
            false => "",
        };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             font-family=\"Inter, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', sans-serif\" font-size=\"13\">\n\
             <style>{STYLE}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
             <text class=\"title\" x=\"24\" y=\"34\">{}</text>\n<text class=\"note\" x=\"24\" y=\"56\">{}{dashed}</text>\n",
            self.title, self.source
        );
        svg += &self.legend();
        svg += &self.grid(&axes);
        for (index, line) in self.lines.iter().enumerate() {
            svg += &axes.curve(&line.peer, index, "line peer");
            svg += &axes.curve(&line.ours, index, "line");
        }
        svg += "</svg>\n";
        svg
    }

    fn legend(&self) -> String {
        let (mut svg, mut x) = (String::new(), 24.0);
        for (index, line) in self.lines.iter().enumerate() {
            let colour = index % COLOURS;
            put(
                &mut svg,
                format_args!(
                    "<path class=\"line c{colour}\" d=\"M{x:.1} 80h22\"/><text x=\"{:.1}\" y=\"84.5\">{}</text>",
                    x + 29.0,
                    line.name
                ),
            );
            x += 54.0 + 7.6 * line.name.chars().count() as f64;
        }
        svg
    }

    fn grid(&self, axes: &Axes) -> String {
        let mut svg = String::new();
        for tick in axes.y.round_ticks() {
            let y = axes.y.place(tick);
            put(
                &mut svg,
                format_args!(
                    "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
                    LEFT - 9.0,
                    y + 4.5
                ),
            );
        }
        let mut free = f64::MIN;
        for tick in self.measured() {
            let x = axes.x.place(tick);
            put(
                &mut svg,
                format_args!("<path class=\"axis\" d=\"M{x:.1} {BOTTOM}v5\"/>"),
            );
            if x >= free {
                free = x + LABEL_WIDTH;
                put(
                    &mut svg,
                    format_args!(
                        "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                        BOTTOM + 21.0,
                        grouped(tick as u64)
                    ),
                );
            }
        }
        put(
            &mut svg,
            format_args!(
                "<path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>\
                 <text class=\"note\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
                 <text class=\"note\" x=\"24\" y=\"{:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 24 {:.1})\">microseconds</text>",
                f64::midpoint(LEFT, RIGHT),
                BOTTOM + 46.0,
                self.x_label,
                f64::midpoint(TOP, BOTTOM),
                f64::midpoint(TOP, BOTTOM)
            ),
        );
        svg
    }

    /// The quantities that have a figure, rising.
    fn measured(&self) -> Vec<f64> {
        let points = self.lines.iter().flat_map(|line| &line.ours);
        let mut all: Vec<f64> = points.map(|point| point.0).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        all
    }
}

struct Axes {
    x: Axis,
    y: Axis,
}

impl Axes {
    /// A polyline with a dot at each point.
    fn curve(&self, points: &[(f64, f64)], index: usize, class: &str) -> String {
        let mut svg = String::new();
        if points.is_empty() {
            return svg;
        }
        let places: Vec<(f64, f64)> = points
            .iter()
            .map(|&(x, y)| (self.x.place(x), self.y.place(y)))
            .collect();
        let mut path = String::new();
        for (number, (x, y)) in places.iter().enumerate() {
            let command = if number == 0 { 'M' } else { 'L' };
            write!(path, "{command}{x:.1} {y:.1}").expect("a String takes every write");
        }
        let colour = index % COLOURS;
        put(
            &mut svg,
            format_args!("<path class=\"{class} c{colour}\" d=\"{path}\"/>"),
        );
        for (x, y) in places {
            put(
                &mut svg,
                format_args!(
                    "<circle class=\"line c{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\"/>"
                ),
            );
        }
        svg
    }
}

/// From a logarithm to a place.
struct Axis {
    /// Smallest and largest value.
    values: (f64, f64),
    places: (f64, f64),
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, places: (f64, f64)) -> Self {
        let ends = values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        Self {
            values: ends,
            places,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        let span = (high / low).ln().max(f64::MIN_POSITIVE);
        let (from, to) = self.places;
        from + (to - from) * (value / low).ln() / span
    }

    /// 1, 2, 5, 10, 20, …, as far as the values go.
    fn round_ticks(&self) -> Vec<f64> {
        let (low, high) = self.values;
        let powers = (-3..9).map(|power| 10f64.powi(power));
        let ticks = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * power));
        // 0.1 times 2 and the like are not round.
        let ticks = ticks.map(|tick| (tick * 1000.0).round() / 1000.0);
        ticks.filter(|tick| (low..=high).contains(tick)).collect()
    }
}

/// 32,768
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn put(svg: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(svg, "{arguments}").expect("a String takes every write");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_logarithmic() {
        let axis = Axis::of([100.0, 1.0].into_iter(), (0.0, 50.0));
        assert_eq!(
            [1.0, 10.0, 100.0].map(|value| axis.place(value).round()),
            [0.0, 25.0, 50.0]
        );
        assert_eq!(axis.round_ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(
            [1, 128, 4096, 151_936, 1_048_576].map(grouped),
            ["1", "128", "4,096", "151,936", "1,048,576"]
        );
    }
}
