//! Draws a recorded terminal (`docs/picture/terminal.txt`, which `docs/picture/record.sh` writes) as an SVG for the README.
//! Lines that begin with `# ` are commands of root; everything else is output.

use commensal_blame::report::escape;
use std::fmt::Write;

/// Width of a character and height of a line, in SVG units, for a monospaced font of 13 units.
const CHARACTER: f64 = 7.83;
const LINE: usize = 18;
/// Space around the text.
const MARGIN: usize = 14;

/// The picture of a transcript. It follows the reader's light or dark mode.
pub fn picture(transcript: &str) -> String {
    let lines: Vec<&str> = transcript.lines().collect();
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "lines of a terminal are short")]
    let width = (longest as f64).mul_add(CHARACTER, 2.0 * MARGIN as f64).ceil();
    let height = lines.len() * LINE + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"A terminal in which commensal protects a service\">\n\
         <style>\n\
         text {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #24292f; white-space: pre }}\n\
         rect {{ fill: #f6f8fa; stroke: #d0d7de }}\n\
         .command {{ font-weight: bold; fill: #0550ae }}\n\
         @media (prefers-color-scheme: dark) {{\n\
         text {{ fill: #c9d1d9 }} rect {{ fill: #161b22; stroke: #30363d }} .command {{ fill: #79c0ff }}\n\
         }}\n\
         </style>\n\
         <rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n",
        width - 1.0,
        height - 1
    );
    for (number, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
        let class = if line.starts_with("# ") { " class=\"command\"" } else { "" };
        let y = MARGIN + (number + 1) * LINE - 5;
        let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{y}\"{class}>{}</text>", escape(line));
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_stand_out_and_text_is_escaped() {
        let svg = picture("# a <b> && c\n\n  x");
        assert!(svg.contains(" class=\"command\"># a &lt;b&gt; &amp;&amp; c</text>"), "{svg}");
        assert!(svg.contains("y=\"63\">  x</text>"), "the empty line keeps its place: {svg}");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<text").count(), 2);
    }
}
