//! The arena over time: steps from left to right, bytes from the bottom up, a box for each buffer.

use super::{Arena, Placed, bytes, slot_name};
use crate::program::Program;
use rlx_ir::dim::{Bindings, DimError};
use std::fmt::Write;

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 720.0;
/// The room for the axes and the title.
const LEFT: f64 = 90.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 48.0;
/// The width of a character of the labels, which are 11 px high.
const LETTER: f64 = 7.0;

/// A picture of the arena with its symbols bound, as SVG.
pub fn arena(p: &Program, bindings: &Bindings) -> Result<String, DimError> {
    let a = Arena::new(p, bindings)?;
    let peak = a.report.peak.max(1) as f64;
    let steps = f64::from(a.steps.max(1));
    let x = |step: f64| LEFT + step / steps * (WIDTH - LEFT - RIGHT);
    let y = |at: f64| HEIGHT - BOTTOM - at / peak * (HEIGHT - TOP - BOTTOM);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
    );
    let at: Vec<String> = bindings.iter().map(|(n, v)| format!("{n} = {v}")).collect();
    let at = if at.is_empty() { String::new() } else { format!(" at {}", at.join(", ")) };
    let title = format!("{}{at}", p.name);
    let r = a.report;
    let figures = format!(
        "{} buffers over {} steps: peak {}, lower bound {}, waste {:.1} %; dotted: bytes in use",
        a.buffers.len(),
        a.steps,
        bytes(r.peak),
        bytes(r.bound),
        100.0 * r.waste()
    );
    text(&mut out, LEFT, 22.0, "start", "font-size=\"15\" font-weight=\"bold\"", &cut(&title, 140));
    text(&mut out, LEFT, 42.0, "start", "", &figures);
    grid(&mut out, &a, &x, &y);
    for (i, b) in a.buffers.iter().enumerate() {
        let (left, right) = (x(f64::from(b.first)), x(f64::from(b.last) + 1.0));
        let (top, bottom) = (y((b.offset.saturating_add(b.bytes)) as f64), y(b.offset as f64));
        boxed(&mut out, p, i, b, [left, top, (right - left).max(0.5), (bottom - top).max(0.5)]);
    }
    live(&mut out, &a, &x, &y);
    let (low, high) = (y(r.bound as f64), y(r.peak as f64));
    let (from, to) = (x(0.0), x(steps));
    for (at, colour, name) in [(low, "#15803d", "lower bound"), (high, "#b91c1c", "peak")] {
        let _ = writeln!(
            out,
            "<line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{colour}\" stroke-dasharray=\"6 4\"/>"
        );
        // Where both are the same line, one name says it.
        if name == "peak" || low - high > 14.0 {
            text(&mut out, to - 4.0, at - 4.0, "end", &format!("fill=\"{colour}\""), name);
        }
    }
    out.push_str("</svg>\n");
    Ok(out)
}

/// Axes with round numbers.
fn grid(out: &mut String, a: &Arena, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) {
    let steps = f64::from(a.steps.max(1));
    // A quarter of the largest power of two below the peak, so that labels are round.
    let unit = (a.report.peak.max(8) as u64).next_power_of_two() / 8;
    let mut at = 0u64;
    while at <= a.report.peak.max(0) as u64 {
        let h = y(at as f64);
        let _ = writeln!(
            out,
            "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{h:.1}\" y2=\"{h:.1}\" stroke=\"#e2e2e2\"/>",
            x(0.0),
            x(steps)
        );
        text(out, LEFT - 8.0, h + 4.0, "end", "", &bytes(i64::try_from(at).unwrap_or(i64::MAX)));
        at = at.saturating_add(unit.max(1));
    }
    let every = (steps / 20.0).ceil().max(1.0);
    let mut step = 0.0;
    while step < steps {
        text(out, x(step + 0.5), HEIGHT - BOTTOM + 16.0, "middle", "", &format!("{step}"));
        step += every;
    }
    text(out, x(steps / 2.0), HEIGHT - 12.0, "middle", "", "step");
}

/// A buffer: neighbours have colours far apart, and hovering tells all about it.
fn boxed(out: &mut String, p: &Program, i: usize, b: &Placed, [left, top, width, height]: [f64; 4]) {
    // Turning by the golden angle never comes back to a colour; three shades part what turns close.
    let (hue, light) = ((i as f64 * 137.508) % 360.0, [84, 77, 89].get(i % 3).copied().unwrap_or(84));
    let name = slot_name(p, b.slot);
    let told = format!(
        "{name}: {} {}, {} ({} B) at {}, steps {} to {}",
        b.label,
        b.ty,
        bytes(b.bytes),
        b.bytes,
        b.offset,
        b.first,
        b.last
    );
    let _ = writeln!(
        out,
        "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"hsl({hue:.0},65%,{light}%)\" \
         stroke=\"#555\" stroke-width=\"0.6\"><title>{}</title></rect>",
        escaped(&told)
    );
    let room = ((width - 6.0) / LETTER) as usize;
    if height >= 13.0 && room >= 3 {
        let label = if b.label.is_empty() { &name } else { &b.label };
        text(
            out,
            left + 3.0,
            top + height / 2.0 + 4.0,
            "start",
            "pointer-events=\"none\"",
            &cut(label, room),
        );
    }
}

/// The bytes that live at each step, as a line.
fn live(out: &mut String, a: &Arena, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) {
    let mut change = vec![0i64; a.steps as usize + 1];
    for b in &a.buffers {
        for (at, by) in [(b.first as usize, b.bytes), (b.last as usize + 1, -b.bytes)] {
            if let Some(c) = change.get_mut(at) {
                *c = c.saturating_add(by);
            }
        }
    }
    let mut now = 0i64;
    let mut points = String::new();
    for (step, c) in change.iter().take(a.steps as usize).enumerate() {
        now = now.saturating_add(*c);
        let h = y(now as f64);
        let _ = write!(points, "{:.1},{h:.1} {:.1},{h:.1} ", x(step as f64), x(step as f64 + 1.0));
    }
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#444\" stroke-width=\"1.2\" stroke-dasharray=\"2 3\" pointer-events=\"none\"/>",
        points.trim_end()
    );
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, style: &str, what: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{}</text>",
        escaped(what)
    );
}

/// At most so many characters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.into();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Names come from files: nothing in them is markup.
fn escaped(s: &str) -> String {
    let s = s.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    s.replace(char::is_control, " ")
}
