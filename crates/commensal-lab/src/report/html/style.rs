//! Style sheet of the page. It uses the colours of the charts. The reader's system selects dark mode; prints are always
//! light.

use crate::report::charts::{COLOURS, STYLE};

const PAGE: &str = "\
*{box-sizing:border-box}\
html{color-scheme:light dark;-webkit-text-size-adjust:100%}\
body{margin:0 auto;padding:2.6rem 1.25rem 4rem;max-width:920px;background:var(--ground);color:var(--ink);\
font:16px/1.55 system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",Arial,sans-serif;overflow-wrap:break-word}\
.kicker{margin:0 0 .9rem;color:var(--muted);font-size:.86rem}\
h1{margin:0;font-size:2.5rem;line-height:1.1;letter-spacing:-.015em}\
.PASS{color:var(--good)}.FAIL,.BROKEN{color:var(--bad)}.INCONCLUSIVE,.INVALID,.NONE{color:var(--open)}\
.headline{margin:.5rem 0 0;font-size:1.3rem;line-height:1.35}\
.evidence{margin:.3rem 0 0;color:var(--muted);font-variant-numeric:tabular-nums}\
h2{margin:2.8rem 0 .3rem;padding-top:.9rem;border-top:1px solid var(--grid);font-size:1.15rem;line-height:1.3}\
h3{margin:1.5rem 0 .3rem;font-size:.95rem}\
.caption,.absent{margin:.1rem 0 1.1rem;max-width:44rem;color:var(--muted);font-size:.88rem;line-height:1.45}\
.scroll+.caption{margin:.6rem 0 1.2rem}.facts{margin:1rem 0 0;padding:0;list-style:none}.facts li{margin:.25rem 0}\
.words{margin:.4rem 0;padding-left:1.1rem;max-width:46rem}.words li{margin:.3rem 0}\
figure{margin:0}svg{display:block;max-width:100%;height:auto}.narrow{display:none}\
.scroll{overflow-x:auto;margin:1.4rem 0 0;-webkit-overflow-scrolling:touch}\
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--arm3);outline-offset:2px}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.95rem}\
.main{width:100%}.main th,.main td{padding-left:.9rem}.main th:first-child{padding-left:0;min-width:6.5rem;max-width:13rem;\
white-space:normal;overflow-wrap:anywhere}\
@media screen and (min-width:900px){.many{font-size:.84rem}.many th,.many td{padding-left:.6rem}.many thead th{font-size:.8rem}}\
th,td{padding:.34rem 0 .34rem 1.3rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid);vertical-align:baseline}\
th:first-child,td:first-child{padding-left:0;text-align:left}\
thead th{color:var(--muted);font-weight:500;font-size:.84rem;border-bottom-color:var(--rule)}\
tbody th{font-weight:600}\
.left th,.left td{text-align:left}.raw{font-size:.78rem}.raw th,.raw td{padding:.16rem 0 .16rem .8rem}\
.raw .off td,.raw .off th{color:var(--muted)}\
dl{display:grid;grid-template-columns:minmax(8.5rem,max-content) 1fr;gap:.2rem 1.4rem;margin:.9rem 0;font-size:.95rem}\
dt{color:var(--muted);max-width:16rem;overflow-wrap:anywhere}dd{margin:0;min-width:0;overflow-wrap:anywhere}\
code,pre{font:.86em/1.45 ui-monospace,\"SF Mono\",Menlo,Consolas,\"DejaVu Sans Mono\",monospace;overflow-wrap:anywhere}\
pre{margin:.5rem 0;padding:.8rem;background:var(--band);overflow-x:auto;white-space:pre-wrap}\
details{margin:1rem 0}summary{cursor:pointer;color:var(--muted)}\
.no{color:var(--bad);font-weight:600}\
footer{margin-top:3.2rem;padding-top:.8rem;border-top:1px solid var(--grid);color:var(--muted);font-size:.84rem}\
.word{color:inherit;text-decoration:underline dotted;text-underline-offset:.18em;text-decoration-color:var(--muted)}\
.word:hover,.word:focus-visible{text-decoration-style:solid}dt:target,dt:target+dd{background:var(--band)}\
.hint{display:none;margin:.4rem 0 0;color:var(--muted);font-size:.84rem}.hint.always{display:block}\
.hint+.scroll{margin-top:.3rem}.left td{white-space:normal}\
@media screen and (max-width:699px){body{padding:1.5rem 1rem 3rem}h1{font-size:2rem}.headline{font-size:1.12rem}\
.wide{display:none}.narrow{display:block;max-width:440px}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5rem}\
table{font-size:.88rem}th,td{padding-left:1rem}}\
@media screen and (min-width:900px){.hint.desk{display:block}}\
@media screen and (max-width:899px){.hint:not(.desk){display:block}.hint+.scroll{border-right:2px solid var(--rule)}\
.main,.main tbody,.main th,.main td{display:block}.main thead{position:absolute;width:1px;height:1px;overflow:hidden;\
clip-path:inset(50%)}.main tr{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,19rem),1fr));column-gap:2rem;\
margin:0 0 1.1rem;border-top:1px solid var(--rule)}.main th:first-child{max-width:none;grid-column:1/-1;\
border-bottom:0;padding:.4rem 0 .1rem;font-size:1rem}.main td{display:flex;flex-wrap:wrap;justify-content:space-between;\
gap:0 1rem;padding:.22rem 0;white-space:normal;overflow-wrap:anywhere;text-align:right}\
.main td::before{content:attr(data-th);color:var(--muted);text-align:left}}\
@media print{body{padding:0;max-width:none;font-size:10.5pt}h2{margin-top:1.6rem;break-after:avoid}\
figure,tr,dl{break-inside:avoid}.caption{break-after:avoid}.scroll{overflow:visible}table{font-size:8.5pt}\
th,td{padding-left:.7rem}.raw{font-size:5.5pt}.raw th,.raw td{padding-left:.3rem}}\
@page{margin:16mm 14mm}";

/// Returns the style sheet of a page.
pub fn sheet() -> String {
    let vars = |pick: fn(&(&str, &str, &str)) -> (String, String)| -> String {
        COLOURS.iter().map(pick).map(|(name, value)| format!("--{name}:{value};")).collect()
    };
    let light = vars(|(name, light, _)| ((*name).to_owned(), (*light).to_owned()));
    let dark = vars(|(name, _, dark)| ((*name).to_owned(), (*dark).to_owned()));
    format!(
        ":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{PAGE}\n{STYLE}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// WCAG 2 requires a contrast of 4.5 for text and 3 for marks. The colours `grid`, `band` and `shade` are exempt as
    /// backgrounds, and `nobody` and `rule` because a text next to each of them names it.
    #[test]
    fn colours_stand_out_from_the_ground() {
        let words =
            ["ink", "muted", "arm0", "arm2", "arm3", "arm4", "arm5", "arm6", "arm7", "good", "bad", "open"];
        let marks = ["arm1", "online", "steal", "kernel", "interrupts"];
        let ground = COLOURS[0];
        for (name, light, dark) in COLOURS {
            let least = if words.contains(&name) {
                4.5
            } else if marks.contains(&name) {
                3.0
            } else {
                0.0
            };
            for (colour, ground) in [(light, ground.1), (dark, ground.2)] {
                let got = contrast(colour, ground);
                assert!(got >= least, "{name} {colour} on {ground}: {got:.2}, at least {least}");
            }
        }
    }

    #[test]
    fn every_variable_has_a_colour() {
        let sheet = sheet();
        for used in sheet.split("var(--").skip(1) {
            let name = used.split(')').next().unwrap();
            assert!(COLOURS.iter().any(|(known, _, _)| *known == name), "--{name}");
        }
    }
}
