// SPDX-License-Identifier: Apache-2.0
#include "client/cli/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/report_json.h"

namespace intrawarp::cli {
namespace {

constexpr std::chrono::milliseconds kPeriod(500);
constexpr int kBarWidth = 24;
// The cost of a deformable stage beside a linear one, and of a level beside the one below it.
constexpr double kDeformable = 5, kFiner = 3;
// The part that is done when the last stage ends: the assessment and the field follow.
constexpr double kOptimised = 0.9;
// After so many iterations a level is two thirds done.
constexpr double kTypicalIterations = 15;

struct Step {
  std::string name;
  // Its usual cost beside a linear stage, and less where it seldom runs.
  double weight = 1;
};

// The steps of a registration without named stages, by the numbers of Progress.stage (registration.proto).
std::vector<Step> AutomaticSteps() {
  return {{"affine (ngf)", 1},
          {"affine (nmi)", 1},
          {"affine (ssd)", 0.2},
          {"ffd (nmi)", kDeformable},
          {"search", 1},
          {"ffd (mind) after search", 3},
          {"ffd (lncc) after search", 1},
          {"ffd (lncc) after nmi", 2},
          {"ffd (lncc)", 0.5},
          {"ffd (nmi, strong bending)", 0.5}};
}

std::vector<Step> StepsOf(const v1::RegistrationOptions& options) {
  if (options.stages().empty()) return AutomaticSteps();
  std::vector<Step> steps;
  for (const v1::Stage& stage : options.stages()) {
    const bool is_linear = stage.has_rigid() || stage.has_affine();
    steps.push_back({MethodOf(stage), is_linear ? 1 : kDeformable});
  }
  return steps;
}

// The fraction of one stage.
double StageFraction(const v1::Progress& p) {
  const int levels = std::clamp(p.levels(), 1, 16), level = std::clamp(p.level(), 0, levels - 1);
  const double in_level = 1 - std::exp(-std::max(0, p.iteration()) / kTypicalIterations);
  double done = 0, all = 0;
  for (int i = 0; i < levels; ++i) {
    const double cost = std::pow(kFiner, i);
    all += cost;
    done += cost * (i < level ? 1 : i == level ? in_level : 0);
  }
  return done / all;
}

std::string Clock(double seconds) {
  const auto whole = static_cast<int64_t>(std::min(seconds, 359999.0));
  if (whole >= 3600) return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
  return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

}  // namespace

double RegistrationFraction(const v1::RegistrationOptions& options, const v1::Progress& progress) {
  const std::vector<Step> steps = StepsOf(options);
  double done = 0, all = 0;
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
    all += steps[i].weight;
    done += steps[i].weight * (i < progress.stage() ? 1 : i == progress.stage() ? StageFraction(progress) : 0);
  }
  return kOptimised * done / all;
}

std::string RegistrationStep(const v1::RegistrationOptions& options, const v1::Progress& p) {
  if (p.stage() < 0) return "before the first stage";
  const std::vector<Step> steps = StepsOf(options);
  const bool is_known = p.stage() < static_cast<int>(steps.size());
  const std::string name = is_known ? steps[p.stage()].name : absl::StrFormat("stage %d", int64_t{1} + p.stage());
  return absl::StrFormat("%s, level %d of %d, iteration %d", name, int64_t{1} + p.level(), p.levels(), p.iteration());
}

std::string BarText(double fraction, std::chrono::duration<double> elapsed, const std::string& step) {
  const int filled = static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * kBarWidth));
  std::string text = absl::StrCat("[", std::string(static_cast<size_t>(filled), '#'),
                                  std::string(static_cast<size_t>(kBarWidth - filled), '-'), "] ");
  absl::StrAppendFormat(&text, "%3.0f %%  %s", 100 * fraction, Clock(elapsed.count()));
  if (elapsed.count() >= 3 && fraction >= 0.05) {
    absl::StrAppend(&text, ", some ", Clock(elapsed.count() * (1 - fraction) / fraction), " to go");
  }
  return absl::StrCat(text, "  ", step);
}

ProgressBar::ProgressBar() : terminal_(isatty(STDERR_FILENO) == 1) {
  if (terminal_) thread_ = std::thread([this] { Run(); });
}

ProgressBar::~ProgressBar() {
  if (!terminal_) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

void ProgressBar::Update(double fraction, std::string step) {
  if (!terminal_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  fraction_ = std::max(fraction_, fraction);
  step_ = std::move(step);
}

void ProgressBar::Redraw() {
  const std::string text = BarText(fraction_, std::chrono::steady_clock::now() - begin_, step_);
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
}

void ProgressBar::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ends_) {
    Redraw();
    changed_.wait_for(lock, kPeriod);
  }
}

bool ShowsColor() {
  const char* none = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool is_dumb = term == nullptr || std::string(term) == "dumb";
  return isatty(STDERR_FILENO) == 1 && (none == nullptr || *none == '\0') && !is_dumb;
}

}  // namespace intrawarp::cli
