//! A comparison as a picture: a bar for each unwinder in each corpus.

use plotters::prelude::{
    ChartBuilder, Color as _, IntoDrawingArea as _, IntoLogRange as _, Palette as _, Palette99,
    Rectangle, SVGBackend, SeriesLabelPosition, Text, WHITE,
};

use crate::comparison::{Comparison, number};

const WIDTH: u32 = 960;
/// Of a bar, in pixels.
const BAR: u32 = 12;

/// The times of a comparison as SVG. The axis is logarithmic.
///
/// # Panics
///
/// If there is nothing to draw.
#[must_use]
pub fn svg(comparison: &Comparison) -> String {
    let Comparison { corpora, lines } = comparison;
    // The name and the bars of each corpus, the first one on top.
    let group = lines.len() + 1;
    let rows = group * corpora.len();
    let times = || lines.iter().flat_map(|line| &line.results).map(|result| result.time);
    let slowest = times().fold(1.0, f64::max);
    let height = u32::try_from(rows).unwrap() * BAR + 100;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE).unwrap();
        let mut chart = ChartBuilder::on(&area)
            .caption("nanoseconds a frame, less is better", ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(30)
            .build_cartesian_2d((1.0..slowest * 20.0).log_scale(), 0.0..number(rows))
            .unwrap();
        chart.configure_mesh().disable_y_mesh().disable_y_axis().draw().unwrap();
        let names = corpora.iter().enumerate().map(|(corpus, name)| {
            let top = number(rows - group * corpus);
            Text::new(name.clone(), (1.0, top), ("sans-serif", BAR))
        });
        chart.draw_series(names).unwrap();
        for (at, line) in lines.iter().enumerate() {
            let color = Palette99::pick(at).filled();
            let bars = line.results.iter().enumerate().map(|(corpus, result)| {
                let top = number(rows - group * corpus - at - 1);
                Rectangle::new([(1.0, top - 0.9), (result.time.max(1.0), top)], color)
            });
            let series = chart.draw_series(bars).unwrap();
            let sample = move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], color);
            series.label(line.name).legend(sample);
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::MiddleRight)
            .background_style(WHITE)
            .draw()
            .unwrap();
        area.present().unwrap();
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::{Line, Outcome};

    #[test]
    fn s7_each_unwinder_and_each_corpus_is_in_the_picture() {
        let outcome = |time| Outcome { time, right: 100.0 };
        let line = |name, times: [f64; 2]| Line { name, results: times.map(outcome).into() };
        let comparison = Comparison {
            corpora: vec!["first corpus".into(), "second corpus".into()],
            lines: vec![line("one", [8.0, 12.0]), line("other", [900.0, f64::NAN])],
        };
        let svg = svg(&comparison);
        for name in ["one", "other", "first corpus", "second corpus"] {
            assert_eq!(svg.matches(&format!("\n{name}\n")).count(), 1, "{name} in {svg}");
        }
    }
}
