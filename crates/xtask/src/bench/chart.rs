//! Charts of ratios, as SVG.

use anyhow::{Result, ensure};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: u32 = 900;
const MARGIN: i32 = 12;
const TITLE: u32 = 36;
const AXIS: u32 = 44;
/// Room of an operation's name, and of what is on the right of the bars.
const NAMES: u32 = 400;
const BAR: u32 = 14;
const GAP: u32 = 8;
const COLOURS: [RGBColor; 2] = [RGBColor(0x1f, 0x6f, 0xb2), RGBColor(0xe0, 0x8a, 0x1e)];

/// A bar: how long, and from where to where its values are spread.
pub(super) struct Bar {
    pub(super) value: f64,
    pub(super) spread: Option<(f64, f64)>,
}

/// An operation's name and its bars, one for each series at most.
pub(super) type Row = (String, Vec<Option<Bar>>);

/// Bars beside each other, from zero, with a line at 1.
pub(super) fn bars(title: &str, axis: &str, series: &[&str], rows: &[Row]) -> Result<String> {
    ensure!(!rows.is_empty() && series.len() <= COLOURS.len(), "nothing to draw, or too much");
    let row_height = series.len() as u32 * BAR + GAP;
    let height = TITLE + AXIS + 2 * MARGIN as u32 + rows.len() as u32 * row_height;
    let values = || rows.iter().flat_map(|(_, bars)| bars.iter().flatten());
    let longest = values().map(|bar| bar.spread.map_or(bar.value, |(_, most)| most)).fold(1.0, f64::max);
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(MARGIN)
            .caption(title, ("sans-serif", 18))
            .x_label_area_size(AXIS)
            .y_label_area_size(NAMES)
            .build_cartesian_2d(0.0..longest * 1.08, rows.len() as f64..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(0)
            .x_desc(axis)
            .x_label_formatter(&|ratio| format!("{ratio:.1}"))
            .label_style(("sans-serif", 12))
            .light_line_style(TRANSPARENT)
            .draw()?;
        let share = f64::from(BAR) / f64::from(row_height);
        for (series_index, (name, colour)) in series.iter().zip(COLOURS).enumerate() {
            let mut shapes = Vec::new();
            for (row, (_, bars)) in rows.iter().enumerate() {
                let Some(bar) = bars.get(series_index).and_then(Option::as_ref) else { continue };
                let top =
                    row as f64 + f64::from(GAP) / f64::from(row_height) / 2.0 + series_index as f64 * share;
                let corners = [(0.0, top), (bar.value, top + share)];
                shapes.push(Rectangle::new(corners, colour.filled()).into_dyn());
                let middle = top + share / 2.0;
                if let Some((least, most)) = bar.spread {
                    shapes.push(PathElement::new([(least, middle), (most, middle)], BLACK).into_dyn());
                }
                let end = bar.spread.map_or(bar.value, |(_, most)| most);
                let style = ("sans-serif", 11).into_text_style(&area).pos(Pos::new(HPos::Left, VPos::Center));
                let place = (end + longest * 0.005, middle);
                shapes.push(Text::new(format!("{:.2}", bar.value), place, style).into_dyn());
            }
            let drawn = chart.draw_series(shapes)?;
            if series.len() > 1 {
                drawn
                    .label(*name)
                    .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
            }
        }
        chart.draw_series([PathElement::new([(1.0, 0.0), (1.0, rows.len() as f64)], BLACK)])?;
        let style = ("sans-serif", 12).into_text_style(&area).pos(Pos::new(HPos::Right, VPos::Center));
        for (row, (name, _)) in rows.iter().enumerate() {
            let (left, middle) = chart.backend_coord(&(0.0, row as f64 + 0.5));
            area.draw(&Text::new(name.as_str(), (left - 6, middle), style.clone()))?;
        }
        if series.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::LowerRight)
                .background_style(WHITE)
                .border_style(BLACK)
                .label_font(("sans-serif", 12))
                .draw()?;
        }
        area.present()?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_every_name_and_value() {
        let bar = |value| Some(Bar { value, spread: None });
        let spread = Some(Bar { value: 0.5, spread: Some((0.25, 0.75)) });
        let rows =
            [("post <one>".to_owned(), vec![bar(0.82), spread]), ("poll".to_owned(), vec![bar(1.25), None])];
        let text = bars("Instructions", "ratio", &["all", "user"], &rows).unwrap();
        for word in
            ["<svg", "Instructions", "ratio", "post &lt;one&gt;", "poll", "0.82", "0.50", "1.25", "user"]
        {
            assert!(text.contains(word), "{word} is missing in {text}");
        }
        assert!(bars("", "", &["all"], &[]).is_err());
    }
}
