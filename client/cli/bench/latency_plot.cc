// SPDX-License-Identifier: Apache-2.0
#include "client/cli/bench/latency_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace intrawarp::cli::bench {
namespace {

constexpr double kWidth = 900, kHeight = 660;
constexpr double kLeft = 70, kRight = 20;
constexpr double kPlotWidth = kWidth - kLeft - kRight;
constexpr double kPlotHeight = 240;
constexpr double kTimeTop = 50, kPercentileTop = 370;
constexpr char kClientColour[] = "#0b5fa5", kServerColour[] = "#c85a00", kBadColour[] = "#c00020";

std::string Escaped(const std::string& text) {
  std::string clean;
  for (const char c : text) clean += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  return absl::StrReplaceAll(clean, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// 1, 2 or 5 times a power of ten, so that there are at most `count` steps.
double NiceStep(double range, int count) {
  const double rough = std::max(range, 1e-9) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

// A box whose y axis is latency, from 0 to a round number at or above the largest.
class Panel {
 public:
  Panel(double top, double largest_ms) : top_(top), step_(NiceStep(largest_ms, 6)) {
    limit_ = step_ * std::max(1.0, std::ceil(largest_ms / step_));
  }

  double Y(double ms) const { return top_ + kPlotHeight * (1 - std::min(ms, limit_) / limit_); }
  // `part`: 0 at the left, 1 at the right.
  static double X(double part) { return kLeft + kPlotWidth * part; }
  double top() const { return top_; }
  double bottom() const { return top_ + kPlotHeight; }

  std::string Frame(const std::string& y_title, const std::string& x_title) const {
    std::string svg = absl::StrFormat(
        "<rect x='%.1f' y='%.1f' width='%.1f' height='%.1f' fill='none' stroke='#444'/>\n"
        "<text x='%.1f' y='%.1f'>%s</text>\n<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n",
        kLeft, top_, kPlotWidth, kPlotHeight, kLeft, top_ - 8, y_title, X(0.5), bottom() + 36, x_title);
    for (double ms = 0; ms <= limit_ * 1.0001; ms += step_) {
      absl::StrAppendFormat(&svg,
                            "<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' stroke='#ddd'/>\n"
                            "<text x='%.1f' y='%.1f' text-anchor='end'>%g</text>\n",
                            kLeft, kLeft + kPlotWidth, Y(ms), Y(ms), kLeft - 6, Y(ms) + 4, ms);
    }
    return svg;
  }

  std::string TickX(double part, const std::string& label) const {
    return absl::StrFormat(
        "<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' stroke='#444'/>\n"
        "<text x='%.1f' y='%.1f' text-anchor='middle'>%s</text>\n",
        X(part), X(part), bottom(), bottom() + 5, X(part), bottom() + 18, label);
  }

  std::string LimitLine(double ms) const {
    if (!(ms > 0) || ms > limit_) return "";
    return absl::StrFormat("<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' stroke='%s' stroke-dasharray='6 4'/>\n",
                           kLeft, kLeft + kPlotWidth, Y(ms), Y(ms), kBadColour);
  }

 private:
  double top_;
  double step_;
  double limit_;
};

// The calls that were due in one column of pixels.
struct Column {
  std::vector<double> ms;
  bool has_bad = false;
};

std::vector<Column> ColumnsOf(const std::vector<ClientLog>& clients, double seconds) {
  std::vector<Column> columns(static_cast<size_t>(kPlotWidth));
  for (const ClientLog& client : clients) {
    for (const CallRecord& call : client.calls) {
      const double part = std::clamp(call.due / seconds, 0.0, 1.0);
      const auto index = std::min(columns.size() - 1, static_cast<size_t>(part * kPlotWidth));
      if (call.fate == Fate::kOk) {
        columns[index].ms.push_back(call.LatencyMs());
      } else {
        columns[index].has_bad = true;
      }
    }
  }
  return columns;
}

std::string TimeMarks(const Panel& panel, std::vector<Column> columns) {
  std::string svg;
  for (size_t i = 0; i < columns.size(); ++i) {
    const double x = kLeft + static_cast<double>(i) + 0.5;
    std::vector<double>& ms = columns[i].ms;
    if (columns[i].has_bad) {
      absl::StrAppendFormat(&svg, "<line class='bad' x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' stroke='%s'/>\n", x, x,
                            panel.top(), panel.top() + 8, kBadColour);
    }
    if (ms.empty()) continue;
    std::sort(ms.begin(), ms.end());
    absl::StrAppendFormat(&svg,
                          "<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' stroke='%s' stroke-opacity='0.5'/>\n"
                          "<circle cx='%.1f' cy='%.1f' r='1.6' fill='%s'/>\n",
                          x, x, panel.Y(ms.back()), panel.Y(ms.front()), kClientColour, x, panel.Y(ms[ms.size() / 2]),
                          kClientColour);
  }
  return svg;
}

// Percentiles on an axis that gives each nine the same room: 0 at the left, 1 - 1/n at the right for the largest of n.
std::string PercentileCurve(const Panel& panel, std::vector<double> ms, double decades, const char* colour) {
  if (ms.empty()) return "";
  constexpr int kPoints = 400;
  std::sort(ms.begin(), ms.end());
  std::string points;
  for (int i = 0; i <= kPoints; ++i) {
    const double axis = static_cast<double>(i) / kPoints;
    const double part = 1 - std::pow(10, -axis * decades);
    const auto rank = std::min(ms.size() - 1, static_cast<size_t>(part * static_cast<double>(ms.size())));
    absl::StrAppendFormat(&points, "%.1f,%.1f ", Panel::X(axis), panel.Y(ms[rank]));
  }
  return absl::StrFormat("<polyline points='%s' fill='none' stroke='%s' stroke-width='2'/>\n", points, colour);
}

struct Latencies {
  std::vector<double> client, server;
  double Largest() const {
    double largest = 0;
    for (const auto* values : {&client, &server}) {
      for (const double ms : *values) largest = std::max(largest, ms);
    }
    return largest;
  }
};

Latencies LatenciesOf(const std::vector<ClientLog>& clients) {
  Latencies latencies;
  for (const ClientLog& client : clients) {
    for (const CallRecord& call : client.calls) {
      if (call.fate != Fate::kOk) continue;
      latencies.client.push_back(call.LatencyMs());
      latencies.server.push_back(call.phases.back());
    }
  }
  return latencies;
}

std::string TimePanel(const std::vector<ClientLog>& clients, double largest_ms, double seconds, double limit_ms) {
  const Panel panel(kTimeTop, largest_ms);
  std::string svg = panel.Frame(
      "ms from due to answer; bars: fastest to slowest, dots: median, red ticks: no good answer", "seconds");
  const double step = NiceStep(seconds, 10);
  for (double s = 0; s <= seconds * 1.0001; s += step)
    absl::StrAppend(&svg, panel.TickX(s / seconds, absl::StrFormat("%g", s)));
  return absl::StrCat(svg, panel.LimitLine(limit_ms), TimeMarks(panel, ColumnsOf(clients, seconds)));
}

std::string PercentilePanel(Latencies latencies, double largest_ms, double limit_ms) {
  const Panel panel(kPercentileTop, largest_ms);
  const double decades = std::max(1.0, std::log10(static_cast<double>(std::max<size_t>(latencies.client.size(), 1))));
  std::string svg = panel.Frame("ms by percentile", "percent of calls at or below");
  for (int nines = 0; nines <= static_cast<int>(decades); ++nines) {
    absl::StrAppend(&svg, panel.TickX(nines / decades, absl::StrFormat("%.7g", 100 * (1 - std::pow(10, -nines)))));
  }
  absl::StrAppendFormat(&svg, "<text x='%.1f' y='%.1f' fill='%s'>client, from due</text>\n", kLeft + 10,
                        kPercentileTop + 18, kClientColour);
  absl::StrAppendFormat(&svg, "<text x='%.1f' y='%.1f' fill='%s'>server, total</text>\n", kLeft + 10,
                        kPercentileTop + 36, kServerColour);
  return absl::StrCat(svg, panel.LimitLine(limit_ms),
                      PercentileCurve(panel, std::move(latencies.server), decades, kServerColour),
                      PercentileCurve(panel, std::move(latencies.client), decades, kClientColour));
}

}  // namespace

std::string LatencyPlot(const std::string& title, const std::vector<ClientLog>& clients, double seconds,
                        double limit_ms) {
  Latencies latencies = LatenciesOf(clients);
  const double largest = std::max(latencies.Largest(), limit_ms);
  return absl::StrCat(
      absl::StrFormat("<svg xmlns='http://www.w3.org/2000/svg' width='%g' height='%g' viewBox='0 0 %g %g' "
                      "font-family='sans-serif' font-size='12'>\n<rect width='100%%' height='100%%' fill='white'/>\n"
                      "<text x='%.1f' y='22' font-size='15'>%s</text>\n",
                      kWidth, kHeight, kWidth, kHeight, kLeft, Escaped(title)),
      TimePanel(clients, largest, seconds, limit_ms), PercentilePanel(std::move(latencies), largest, limit_ms),
      "</svg>\n");
}

}  // namespace intrawarp::cli::bench
