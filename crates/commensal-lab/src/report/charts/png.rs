//! A chart as PNG at twice its size, for slides and chats.

use resvg::{tiny_skia, usvg};
use std::sync::Arc;

/// Pixels per unit of the picture.
const SCALE: f32 = 2.0;

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum PngError {
    /// The machine has no font, so the labels would be missing.
    #[error(
        "this machine has no font to write the labels with; a package such as fonts-dejavu-core brings one"
    )]
    NoFont,
    /// It is not a picture.
    #[error("the chart is not SVG: {0}")]
    Svg(#[from] usvg::Error),
    /// It is too large, or cannot be compressed.
    #[error("the chart cannot be drawn: {0}")]
    Draw(String),
}

/// Draws a picture in SVG; gives the bytes of a PNG file.
///
/// # Errors
/// See [`PngError`].
pub fn png(svg: &str) -> Result<Vec<u8>, PngError> {
    let mut options = usvg::Options::default();
    let fonts = Arc::make_mut(&mut options.fontdb);
    fonts.load_system_fonts();
    // Whatever there is has to do where none of the families that a chart names is installed.
    let plain = fonts.faces().find(|face| face.families.iter().any(|(name, _)| name == "DejaVu Sans"));
    let family = plain.or_else(|| fonts.faces().next()).and_then(|face| face.families.first());
    let family = family.map(|(name, _)| name.clone()).ok_or(PngError::NoFont)?;
    fonts.set_sans_serif_family(family);
    let tree = usvg::Tree::from_str(svg, &options)?;
    let size = tree.size().to_int_size().scale_by(SCALE);
    let size = size.ok_or_else(|| PngError::Draw("its size is out of range".to_owned()))?;
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height())
        .ok_or_else(|| PngError::Draw(format!("{} x {} pixels are too many", size.width(), size.height())))?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| PngError::Draw(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_twice_its_size_and_more_than_one_colour() {
        let mut run = crate::fixture::small_run();
        crate::analysis::conclude(&mut run);
        for chart in crate::report::charts(&run) {
            let bytes = match png(&chart.svg) {
                Ok(bytes) => bytes,
                Err(error @ PngError::NoFont) => {
                    println!("skipped: a_chart_has_twice_its_size_and_more_than_one_colour: {error}");
                    return;
                }
                Err(error) => panic!("{}: {error}", chart.name),
            };
            assert!(bytes.starts_with(b"\x89PNG\r\n"));
            let width = u32::from_be_bytes(bytes[16..20].try_into().unwrap());
            assert_eq!(width, 2 * 928, "{}", chart.name);
            assert!(bytes.len() > 2_000, "{}: {} bytes", chart.name, bytes.len());
        }
        assert!(matches!(png("<p>"), Err(PngError::Svg(_))));
    }
}
