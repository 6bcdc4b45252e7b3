//! SVG primitives for charts: shapes with CSS classes, and one style sheet. A chart inside a page uses colour variables
//! of the page, which follow light and dark mode. A standalone chart contains the light colours.
//!
//! Every mark that represents data has the class `d`. A chart without such marks is replaced by a text.

use std::fmt::Write as _;

/// Width of a chart on a desktop screen, in pixels.
pub const WIDE: f64 = 880.0;
/// Width of a chart on a phone, in pixels.
pub const NARROW: f64 = 358.0;
/// Line height of text, in pixels.
pub const LINE: f64 = 14.0;
/// Assumed maximum width of a character in labels, in pixels.
const CHARACTER: f64 = 7.2;

/// Names of colours with their light and dark values. Hues are distinguishable with any kind of colour vision, and
/// their contrast to the background is at least 3 (marks) or 4.5 (text).
pub const COLOURS: [(&str, &str, &str); 27] = [
    ("ground", "#ffffff", "#16181b"),
    ("ink", "#1d2125", "#e4e6e8"),
    ("muted", "#5c656e", "#a0a8b0"),
    ("rule", "#aab1b8", "#59616a"),
    ("grid", "#e6e9ec", "#2a2f34"),
    ("band", "#e9eef3", "#262d35"),
    ("shade", "#f6efe1", "#2a2519"),
    ("arm0", "#4d565f", "#b6bec6"),
    ("arm1", "#848d96", "#838c95"),
    ("arm2", "#b84a00", "#ff9355"),
    ("arm3", "#0067a8", "#5db2f2"),
    ("arm4", "#00795a", "#3fc79c"),
    ("arm5", "#9c3f76", "#e79ac4"),
    ("arm6", "#6a51a3", "#b3a2ea"),
    ("arm7", "#7d6200", "#d9b84a"),
    ("online", "#1a7f86", "#46b1b8"),
    ("offline", "#c08a1e", "#d6a23c"),
    ("other", "#939ca5", "#747d86"),
    ("steal", "#7a3b69", "#c985b6"),
    ("kernel", "#5b5ea6", "#9396dd"),
    ("nobody", "#c3c9cf", "#454c53"),
    ("interrupts", "#a34a28", "#dd8a68"),
    ("good", "#00694e", "#4fcfa5"),
    ("bad", "#a93d00", "#ff9355"),
    ("open", "#7a5c00", "#e0bd52"),
    ("onlight", "#1d2125", "#16181b"),
    ("ondark", "#ffffff", "#16181b"),
];

/// Style sheet of charts; `var(--…)` refers to [`COLOURS`].
pub const STYLE: &str = "\
svg text{font-size:12px;fill:var(--ink);font-variant-numeric:tabular-nums}\
svg .s{fill:var(--muted);font-size:11px}svg .b{font-weight:600}svg .h{font-weight:600;font-size:13px}\
svg .e{text-anchor:end}svg .m{text-anchor:middle}\
svg .axis{stroke:var(--rule);stroke-width:1}svg .grid{stroke:var(--grid);stroke-width:1}\
svg .theta{stroke:var(--muted);stroke-width:1.2;stroke-dasharray:5 4}\
svg .band{fill:var(--band)}svg .shade{fill:var(--shade)}\
svg .est{stroke-width:2.2;stroke-linecap:round}svg .curve{fill:none;stroke-width:1.9;stroke-linejoin:round;stroke-linecap:round}\
svg .thin{stroke-width:1.2}svg .ci{fill-opacity:.2}svg .pt{fill-opacity:.72}svg .inv{opacity:.35}\
svg .gap{stroke:var(--ground);stroke-width:.6}svg .in{fill:var(--onlight);font-size:11px}svg .inw{fill:var(--ondark);font-size:11px}\
svg .f0{fill:var(--arm0)}svg .f1{fill:var(--arm1)}svg .f2{fill:var(--arm2)}svg .f3{fill:var(--arm3)}\
svg .f4{fill:var(--arm4)}svg .f5{fill:var(--arm5)}svg .f6{fill:var(--arm6)}svg .f7{fill:var(--arm7)}\
svg .l0{stroke:var(--arm0)}svg .l1{stroke:var(--arm1)}svg .l2{stroke:var(--arm2)}svg .l3{stroke:var(--arm3)}\
svg .l4{stroke:var(--arm4)}svg .l5{stroke:var(--arm5)}svg .l6{stroke:var(--arm6)}svg .l7{stroke:var(--arm7)}\
svg .online{fill:var(--online)}svg .offline{fill:var(--offline)}svg .other{fill:var(--other)}svg .steal{fill:var(--steal)}\
svg .kernel{fill:var(--kernel)}svg .nobody{fill:var(--nobody)}svg .interrupts{fill:var(--interrupts)}\
svg .hit{fill:transparent}svg .tip{outline:none}svg .tip .pt{stroke:var(--ink);stroke-opacity:0;stroke-width:7;pointer-events:all}\
svg .say{visibility:hidden;pointer-events:none;font-weight:600;paint-order:stroke;stroke:var(--ground);stroke-width:5px}\
svg .tip:hover .say,svg .tip:focus .say{visibility:visible}svg .tip:hover .hit,svg .tip:focus .hit{fill:var(--ink)}\
svg .tip:hover .pt,svg .tip:focus .pt{stroke-opacity:1;stroke-width:1.5}\
svg .tip:hover .d,svg .tip:focus .d{fill-opacity:1}";

/// Returns the style sheet with light colours in place of the variables.
fn fixed_style() -> String {
    let mut style = STYLE.to_owned();
    for (name, light, _) in COLOURS {
        style = style.replace(&format!("var(--{name})"), light);
    }
    style
}

/// A chart that is being drawn.
#[derive(Debug)]
pub struct Canvas {
    width: f64,
    /// Height of the chart so far, in pixels.
    pub height: f64,
    body: String,
    desc: Vec<String>,
}

impl Canvas {
    /// Creates an empty chart of this width in pixels.
    pub fn new(width: f64) -> Self {
        Self { width, height: 0.0, body: String::new(), desc: Vec::new() }
    }

    /// Returns the width in pixels.
    pub fn width(&self) -> f64 {
        self.width
    }

    /// Returns whether the chart is so narrow that labels must be above their marks instead of next to them.
    pub fn is_narrow(&self) -> bool {
        self.width < 500.0
    }

    /// Adds a sentence to the description for screen readers.
    pub fn describe(&mut self, sentence: String) {
        self.desc.push(sentence);
    }

    /// Draws a rectangle, given by its upper left corner and its size.
    pub fn rect(&mut self, class: &str, (x, y): (f64, f64), (w, h): (f64, f64)) {
        let (x, y, w, h) = (num(x), num(y), num(w), num(h));
        let _ =
            writeln!(self.body, "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"/>");
    }

    /// Draws a straight line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let _ = writeln!(
            self.body,
            "<line class=\"{class}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>",
            num(from.0),
            num(from.1),
            num(to.0),
            num(to.1)
        );
    }

    /// Draws a dot with `tip` as its tooltip.
    pub fn dot(&mut self, class: &str, (x, y): (f64, f64), r: f64, tip: Option<&str>) {
        let (x, y, r) = (num(x), num(y), num(r));
        let _ = write!(self.body, "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"{r}\"");
        self.body.push_str(&match tip {
            Some(tip) => format!("><title>{}</title></circle>\n", escape(tip)),
            None => "/>\n".to_owned(),
        });
    }

    /// Draws marks with `draw`, and a tooltip with the text `words` at `place`. The tooltip is visible while the
    /// pointer is on the marks, or after the user selects them by touch or keyboard; this needs style sheets only, no
    /// scripts. The chart must reserve the space for the tooltip, so that no later mark covers it. With class `e`, the
    /// text is right-aligned at `place`.
    pub fn tip(&mut self, words: &str, place: (f64, f64), class: &str, draw: impl FnOnce(&mut Self)) {
        self.body.push_str("<g class=\"tip\" tabindex=\"-1\">");
        draw(self);
        if self.body.ends_with('\n') {
            self.body.pop();
        }
        for (nth, line) in words.lines().enumerate() {
            let (x, y) = (num(place.0), num(place.1 + nth as f64 * LINE));
            let line = escape(line);
            let _ = write!(self.body, "<text class=\"say {class}\" x=\"{x}\" y=\"{y}\">{line}</text>");
        }
        self.body.push_str("</g>\n");
    }

    /// Draws a line through points.
    pub fn curve(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{},{}", num(*x), num(*y))).collect();
        let _ = writeln!(self.body, "<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
    }

    /// Draws a text with its lower left corner at this point, unless the class specifies another alignment.
    pub fn text(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        let (x, y) = (num(x), num(y));
        let _ = writeln!(self.body, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>", escape(text));
    }

    /// Draws a legend with a colour patch for each name, starting at the height `top`. Returns the position of the
    /// legend's lower end.
    pub fn key(&mut self, left: f64, top: f64, entries: &[(String, String)]) -> f64 {
        let (mut x, mut y) = (left, top);
        for (class, name) in entries {
            let name = fitted(name, self.width - left - 30.0);
            // The legend's font is smaller than that of labels.
            let wide = 16.0 + text_width(&name) * 0.92;
            if x > left && x + wide > self.width {
                x = left;
                y += 18.0;
            }
            self.rect(class, (x, y + 1.0), (10.0, 10.0));
            self.text("s", (x + 15.0, y + 10.0), &name);
            x += wide + 16.0;
        }
        y + 18.0
    }

    /// Renders the chart as part of a page; `id` must be unique on the page.
    pub fn embedded(&self, id: &str, title: &str) -> String {
        let (width, height) = (num(self.width), num(self.height));
        format!(
            "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
             aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>\n{}</svg>\n",
            escape(title),
            escape(&self.desc.join(" ")),
            self.body
        )
    }

    /// Renders the chart as a standalone file with its title and the name of the run.
    pub fn alone(&self, title: &str, from: &str) -> String {
        let (width, height) = (self.width + 48.0, self.height + 88.0);
        let room = width - 48.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" role=\"img\" \
             aria-labelledby=\"t d\" font-family=\"system-ui, Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n\
             <title id=\"t\">{}</title><desc id=\"d\">{}</desc>\n\
             <style>{}svg .title{{font-size:17px;font-weight:600}}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
             <text class=\"title\" x=\"24\" y=\"34\">{}</text>\n<text class=\"s\" x=\"24\" y=\"54\">{}</text>\n\
             <g transform=\"translate(24 72)\">\n{}</g>\n</svg>\n",
            escape(title),
            escape(&self.desc.join(" ")),
            fixed_style(),
            escape(&fitted(title, room / 1.45)),
            escape(&fitted(from, room)),
            self.body,
            w = num(width),
            h = num(height),
        )
    }
}

/// Draws a text in place of a chart that cannot be drawn.
pub fn words(why: &str) -> Canvas {
    let mut canvas = Canvas::new(WIDE);
    for line in lines(why, WIDE) {
        canvas.height += 18.0;
        let at = (0.0, canvas.height - 4.0);
        canvas.text("t", at, &line);
    }
    canvas.describe(why.to_owned());
    canvas
}

/// Breaks a text at spaces into lines of at most `px` pixels.
fn lines(text: &str, px: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text_width(line) + text_width(word) + CHARACTER <= px => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(fitted(word, px)),
        }
    }
    lines
}

/// Returns the estimated width of a label in pixels.
pub fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER
}

/// Truncates a label so that it fits in `px` pixels.
pub fn fitted(text: &str, px: f64) -> String {
    let fits = (px / CHARACTER).max(1.0) as usize;
    if text.chars().count() <= fits {
        return text.to_owned();
    }
    text.chars().take(fits - 1).chain(['…']).collect()
}

/// Formats a coordinate with one decimal. NaN and infinite values become 0.
fn num(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{value:.1}");
    match text.strip_suffix(".0").unwrap_or(&text) {
        "-0" => "0".to_owned(),
        text => text.to_owned(),
    }
}

pub use commensal_blame::report::escape;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out() {
        assert_eq!(escape("a<b>&\"'\u{1}\u{ffff}\n"), "a&lt;b&gt;&amp;&quot;&#39;\\u{1}\u{fffd}\n");
        let mut canvas = Canvas::new(WIDE);
        canvas.text("t", (0.0, 0.0), "</text><script>");
        canvas.tip("</text><script>\n<script>", (0.0, 0.0), "e", |canvas| {
            canvas.dot("d", (0.0, 0.0), 1.0, None)
        });
        canvas.describe("<script>".to_owned());
        assert!(!canvas.embedded("x", "<script>").contains("<script>"));
        assert!(!canvas.alone("<script>", "<script>").contains("<script>"));
    }

    #[test]
    fn coordinates_are_short_numbers() {
        let check = |value, want: &str| assert_eq!(num(value), want);
        check(1.0, "1");
        check(1.26, "1.3");
        check(-0.01, "0");
        check(f64::NAN, "0");
        check(f64::INFINITY, "0");
    }

    #[test]
    fn labels_are_cut_to_their_room() {
        assert_eq!(fitted("isolated", 100.0), "isolated");
        assert_eq!(fitted("isolated:with-a-long-name", 72.0), "isolated:…");
        assert_eq!(fitted("é", 0.0), "é");
        assert_eq!(lines("one two three", 60.0), ["one two", "three"]);
    }

    #[test]
    fn a_picture_alone_has_no_variables() {
        let text = Canvas::new(WIDE).alone("title", "from");
        assert!(!text.contains("var("), "{text}");
        assert!(words("no data").alone("t", "f").contains("no data"));
    }
}
