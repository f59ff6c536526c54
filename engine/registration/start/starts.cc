// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/start/starts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/device/parallel.h"
#include "engine/metric/affine_objective.h"
#include "engine/quality/verdict.h"
#include "engine/registration/methods/affine.h"
#include "engine/registration/stage/stage.h"
#include "engine/registration/start/body.h"
#include "engine/registration/start/rotations.h"

namespace intrawarp {
namespace {

// Candidates that are optimised at the screening level, at the coarsest and at the finer ones.
constexpr int kScreenedProper = 8, kScreenedMirrored = 4;
constexpr int kCoarsestProper = 4, kCoarsestMirrored = 2;
constexpr int kFinerProper = 3, kFinerMirrored = 1;
// The same of a slice.
constexpr int kCoarsestOfSlice = 16, kFinerOfSlice = 6;
constexpr int kIterations = 50, kFinerIterations = 15;
// Levels above the coarsest where close rivals meet again, and the rotations that give v0 there.
constexpr int kFinerLevels = 2, kFinerRotations = 12;
// The largest level where they do: searching is to stay cheap beside registering.
constexpr int64_t kFinerVoxels = 300'000;
// A winner with this margin over proper rivals needs neither finer rotations nor finer levels.
constexpr double kClearMargin = 0.3;
// A mirrored candidate this far behind or ahead is judged without finer levels.
constexpr double kClearMirror = 0.1;
// Where every rotation fits as well as the winner, to this much in the optimiser's unit, nothing tells them apart.
constexpr double kLeastGain = 0.005;
// Evaluations between two looks at the checkpoint on the CPU; on CUDA kMaxAffineMaps.
constexpr size_t kAtOnceOnCpu = 16;
// Rotations by less are the translation alone, degrees.
constexpr double kNoRotation = 1e-6;

struct Trial {
  StartCandidate candidate;
  AffineMap map = AffineMap::Identity();
  std::optional<double> value;
  // The rest is known once the trial was scored. The score is by the images only.
  double overlap = 0;
  std::optional<double> score;
  // The term of landmarks at `map`.
  double landmarks = 0;

  double rank() const { return *score + landmarks; }
  bool is_mirrored() const { return candidate.kind == StartKind::kMirrored; }
  // The candidates of former versions, which take part at the coarsest level whatever the screening says.
  bool is_given() const { return candidate.kind == StartKind::kHeader || candidate.kind == StartKind::kCenterOfMass; }
};

using Trials = std::vector<Trial>;

std::vector<AffineMap> MapsOf(absl::Span<const Trial> trials) {
  std::vector<AffineMap> maps;
  for (const Trial& trial : trials) maps.push_back(trial.map);
  return maps;
}

double MedianValue(const Trials& trials) {
  std::vector<double> values;
  for (const Trial& trial : trials) {
    if (trial.value.has_value()) values.push_back(*trial.value);
  }
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The part of the images' gain over v0 by which `trial` is ahead of `rival`; 0 where there is hardly a gain.
double ImageLead(const Trial& trial, const Trial& rival, double v0) {
  const double gain = v0 - std::min(*trial.score, *rival.score);
  return gain > kLeastGain ? (*rival.score - *trial.score) / gain : 0;
}

// The same with the landmarks, which count where the images leave open which of the two it is.
double Lead(const Trial& trial, const Trial& rival, double v0) {
  const double lead = ImageLead(trial, rival, v0);
  if (std::abs(lead) >= kLeastStartMargin) return lead;
  const double gain = v0 - std::min(*trial.score, *rival.score);
  return lead + (rival.landmarks - trial.landmarks) / std::max(gain, kLeastGain);
}

Vec3d Axis(const Geometry& g, int axis) { return {g.direction[0][axis], g.direction[1][axis], g.direction[2][axis]}; }

// The map after a reflection along the unit vector `along` (Householder).
AffineMap Reflected(const AffineMap& map, Vec3d along) {
  AffineMap reflected = map;
  const Vec3d image = map.Linear(along);
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 3; ++c) reflected.m[r][c] -= 2 * image[r] * along[c];
  return reflected;
}

bool HasBetterRank(const Trial& a, const Trial& b) { return a.rank() < b.rank(); }

// The proper or the mirrored trials that have a score.
Trials SortedByScore(const Trials& trials, bool mirrored) {
  Trials sorted;
  std::copy_if(trials.begin(), trials.end(), std::back_inserter(sorted),
               [&](const Trial& trial) { return trial.score.has_value() && trial.is_mirrored() == mirrored; });
  std::stable_sort(sorted.begin(), sorted.end(), [](const Trial& a, const Trial& b) { return *a.score < *b.score; });
  return sorted;
}

class StartFinder {
 public:
  StartFinder(const ExecContext& ctx, const RegistrationImages& images, MetricKind metric)
      : ctx_(ctx),
        images_(WithoutLandmarks(images)),
        landmarks_(images.landmarks),
        is_slice_(IsSliceOf(images.fixed->geometry(), images.moving->geometry())),
        metric_(StartMetric(metric)),
        is_2d_(images.fixed->geometry().is_2d() && !is_slice_),
        rotations_(is_2d_ ? PlaneRotations(Axis(images.fixed->geometry(), 2)) : CoarseRotations()),
        coarsest_(CoarsestAffineLevel(images)),
        screening_(coarsest_) {
    const int next = coarsest_ + 1;
    if (!is_slice_ && next < static_cast<int>(images.fixed->levels().size()) && images.fixed_masks[next].count > 0)
      screening_ = next;
  }

  absl::StatusOr<StartSearch> Run();

 private:
  absl::Status ReadBodies();
  absl::Status Search(const std::vector<Quaternion>& rotations, bool is_first);
  absl::Status Compare();
  Trials Rivals(const Trials& trials, size_t proper) const;
  void Judge();
  const Trial* Winner(const Trials& proper) const;
  void Rename(Trials* trials) const;
  StartSearch Result() const;

  absl::StatusOr<Trials> Screen(const std::vector<Quaternion>& rotations, bool is_first);
  absl::Status MeetAtCoarsest(const Trials& trials);
  absl::Status OptimiseAll(int level, int iterations, double v0, Trials* trials);

  Trials Rotated(const std::vector<Quaternion>& rotations, bool mirrored) const;
  Trials AroundHeader() const;
  Trials Proposed(const std::vector<Quaternion>& rotations) const;
  Trials Sample() const;
  absl::Status Evaluate(int level, Trials* trials);
  absl::Status CheckTime();
  // The trials with a score that end at clearly different maps, best first: by score, and with landmarks those that the
  // images do not tell from the best.
  Trials Best(const Trials& trials, bool mirrored, size_t count) const;
  Trials BestOfBoth(const Trials& trials, size_t proper, size_t mirrored) const;
  // The trials that go on after a screening: the best by score, and with landmarks the best by those, too, so that a
  // wrong landmark drops nothing.
  Trials Screened(const Trials& trials, size_t proper, size_t mirrored) const;
  void AddDistinct(const Trials& sorted, size_t count, Trials* chosen) const;

  void Score(double v0, Trials* trials) const;
  AffineMap AboutCenters(AffineMap linear) const;
  double Overlap(const AffineMap& map) const;
  bool AreApart(const AffineMap& a, const AffineMap& b) const;
  std::optional<double> Margin(const Trials& proper) const;

  const ExecContext& ctx_;
  const RegistrationImages images_;
  const absl::Span<const Landmark> landmarks_;
  const bool is_slice_;
  const MetricKind metric_;
  const bool is_2d_;
  // The first round's.
  const std::vector<Quaternion> rotations_;
  const int coarsest_;
  int screening_;
  Body fixed_, moving_;
  // At the level of the last comparison, and at the screening level.
  double v0_ = 0, screening_v0_ = 0;
  // Optimised at the coarsest level, and the best of them as Compare left them.
  Trials finals_, rivals_;
  std::optional<double> margin_, mirror_lead_;
  int evaluations_ = 0;
  // The budget is used up.
  bool stopped_ = false;
};

AffineMap StartFinder::AboutCenters(AffineMap linear) const {
  const Vec3d shift =
      images_.moving->statistics().center_of_mass - linear.Linear(images_.fixed->statistics().center_of_mass);
  for (int r = 0; r < 3; ++r) linear.m[r][3] = shift[r];
  return linear;
}

Trials StartFinder::Rotated(const std::vector<Quaternion>& rotations, bool mirrored) const {
  Trials trials;
  const Vec3d along = is_2d_ ? Axis(images_.fixed->geometry(), 0) : Vec3d{1, 0, 0};
  for (const Quaternion& rotation : rotations) {
    const AffineMap turned = RotationMap(rotation);
    const AffineMap linear = mirrored ? Reflected(turned, along) : turned;
    Trial trial;
    trial.candidate.rotation_deg = RotationAngle(rotation);
    const bool turns = trial.candidate.rotation_deg > kNoRotation;
    trial.candidate.kind = mirrored ? StartKind::kMirrored : turns ? StartKind::kRotation : StartKind::kCenterOfMass;
    trial.map = trial.candidate.start = AboutCenters(linear);
    trials.push_back(trial);
  }
  return trials;
}

// The displacements of a slice, and last the centres of mass.
Trials StartFinder::AroundHeader() const {
  const Geometry& slice = images_.fixed->geometry();
  const Vec3d middle = Center(slice), normal = Axis(slice, 2);
  Trials trials;
  const auto add = [&](double offset, const Quaternion& rotation) {
    Trial trial;
    trial.candidate.kind = StartKind::kNearHeader;
    trial.candidate.offset_mm = offset;
    trial.candidate.rotation_deg = RotationAngle(rotation);
    trial.map = RotationMap(rotation);
    const Vec3d shift = middle + offset * normal - trial.map.Linear(middle);
    for (int r = 0; r < 3; ++r) trial.map.m[r][3] = shift[r];
    trial.candidate.start = trial.map;
    trials.push_back(trial);
  };
  for (const double turn : kSliceTurns) {
    const Quaternion in_plane = RotationAbout(normal, turn);
    for (const double offset : kSliceOffsets) {
      for (const double tilt : kSliceTilts) add(offset, Multiply(RotationAbout(Axis(slice, 0), tilt), in_plane));
      for (const double tilt : kSliceTilts) {
        if (tilt != 0) add(offset, Multiply(RotationAbout(Axis(slice, 1), tilt), in_plane));
      }
    }
  }
  const Trials centered = Rotated({Quaternion()}, false);
  trials.insert(trials.end(), centered.begin(), centered.end());
  return trials;
}

Trials StartFinder::Proposed(const std::vector<Quaternion>& rotations) const {
  if (is_slice_) return AroundHeader();
  Trials trials = Rotated(rotations, false);
  const Trials mirrored = Rotated(rotations, true);
  trials.insert(trials.end(), mirrored.begin(), mirrored.end());
  return trials;
}

// A few proper candidates, whose median value is that of unrelated images.
Trials StartFinder::Sample() const {
  Trials trials = is_slice_ ? AroundHeader() : Rotated(rotations_, false);
  const size_t step = is_slice_ ? std::max<size_t>(1, trials.size() / kFinerRotations) : 1;
  Trials sample;
  for (size_t i = 0; i < trials.size() && sample.size() < kFinerRotations; i += step) sample.push_back(trials[i]);
  return sample;
}

double StartFinder::Overlap(const AffineMap& map) const {
  if (is_slice_) return CoveredFraction(fixed_.points, map, moving_);
  return std::max(CoveredFraction(fixed_.points, map, moving_), CoveredFraction(moving_.points, Inverse(map), fixed_));
}

bool StartFinder::AreApart(const AffineMap& a, const AffineMap& b) const {
  const double voxels = is_slice_ ? kDistinctPixelsOfSlice : kDistinctVoxels;
  return MeanDistance(fixed_.points, a, b) > voxels * VoxelScale(fixed_.grid);
}

absl::Status StartFinder::CheckTime() {
  if (stopped_) return absl::OkStatus();
  const Decision decision = ctx_.Checkpoint(Progress{kBeforeStages, 0, coarsest_ + 1, 0, 0});
  if (decision == Decision::kCancel) return absl::CancelledError("cancelled");
  stopped_ = stopped_ || decision == Decision::kStop;
  return absl::OkStatus();
}

absl::Status StartFinder::Evaluate(int level, Trials* trials) {
  const size_t at_once = ctx_.is_cuda() ? kMaxAffineMaps : kAtOnceOnCpu;
  for (size_t first = 0; first < trials->size(); first += at_once) {
    INTRAWARP_RETURN_IF_ERROR(CheckTime());
    if (stopped_) return absl::OkStatus();
    const absl::Span<Trial> some = absl::MakeSpan(*trials).subspan(first, at_once);
    INTRAWARP_ASSIGN_OR_RETURN(const std::vector<SampledValue> values,
                               AffineValues(ctx_, {images_, metric_, level}, MapsOf(some)));
    evaluations_ += static_cast<int>(values.size());
    for (size_t i = 0; i < some.size(); ++i) some[i].value = values[i].value;
  }
  return absl::OkStatus();
}

void StartFinder::Score(double v0, Trials* trials) const {
  ParallelFor(static_cast<int64_t>(trials->size()), [&](int64_t i) {
    Trial& trial = (*trials)[i];
    trial.score.reset();
    trial.overlap = Overlap(trial.map);
    trial.landmarks = LandmarkTerm(landmarks_, trial.map);
    if (trial.value.has_value()) trial.score = trial.overlap * *trial.value + (1 - trial.overlap) * v0;
  });
}

absl::Status StartFinder::OptimiseAll(int level, int iterations, double v0, Trials* trials) {
  for (Trial& trial : *trials) trial.score.reset();
  if (stopped_) return absl::OkStatus();
  const Progress progress{kBeforeStages, 0, coarsest_ + 1, 0, 0};
  INTRAWARP_ASSIGN_OR_RETURN(const RigidRuns ends,
                             RunRigidLevel(ctx_, {images_, metric_, level}, MapsOf(*trials), iterations, progress));
  for (size_t i = 0; i < trials->size(); ++i) {
    (*trials)[i].map = ends.runs[i].map;
    (*trials)[i].value = ends.runs[i].value.value;
    evaluations_ += ends.runs[i].evaluations;
  }
  stopped_ = ends.decision == Decision::kStop;
  if (!stopped_) Score(v0, trials);
  return absl::OkStatus();
}

void StartFinder::AddDistinct(const Trials& sorted, size_t count, Trials* chosen) const {
  const size_t most = chosen->size() + count;
  for (const Trial& trial : sorted) {
    if (chosen->size() == most) break;
    const bool is_new = std::all_of(chosen->begin(), chosen->end(), [&](const Trial& other) {
      return other.is_mirrored() != trial.is_mirrored() || AreApart(other.map, trial.map);
    });
    if (is_new) chosen->push_back(trial);
  }
}

Trials StartFinder::Best(const Trials& trials, bool mirrored, size_t count) const {
  Trials sorted = SortedByScore(trials, mirrored);
  const auto is_open = [&](const Trial& trial) { return ImageLead(sorted.front(), trial, v0_) < kLeastStartMargin; };
  // Landmarks say nothing of mirroring.
  if (!mirrored) {
    const auto decided = std::find_if_not(sorted.begin(), sorted.end(), is_open);
    std::stable_sort(sorted.begin(), decided, HasBetterRank);
  }
  Trials best;
  AddDistinct(sorted, count, &best);
  return best;
}

Trials StartFinder::Screened(const Trials& trials, size_t proper, size_t mirrored) const {
  Trials screened;
  Trials sorted = SortedByScore(trials, false);
  AddDistinct(sorted, proper, &screened);
  if (!landmarks_.empty()) {
    std::stable_sort(sorted.begin(), sorted.end(), HasBetterRank);
    AddDistinct(sorted, proper / 2, &screened);
  }
  AddDistinct(SortedByScore(trials, true), mirrored, &screened);
  return screened;
}

Trials StartFinder::BestOfBoth(const Trials& trials, size_t proper, size_t mirrored) const {
  Trials best = Best(trials, false, proper);
  const Trials reflections = Best(trials, true, mirrored);
  best.insert(best.end(), reflections.begin(), reflections.end());
  return best;
}

std::optional<double> StartFinder::Margin(const Trials& proper) const {
  if (proper.empty()) return std::nullopt;
  return proper.size() == 1 ? 1 : std::clamp(Lead(proper[0], proper[1], v0_), 0.0, 1.0);
}

absl::Status StartFinder::ReadBodies() {
  const int moving = MatchingLevel(*images_.moving, images_.fixed->levels()[coarsest_].volume.geometry);
  INTRAWARP_ASSIGN_OR_RETURN(fixed_, ReadBody(ctx_, *images_.fixed, coarsest_, images_.fixed_masks[coarsest_]));
  INTRAWARP_ASSIGN_OR_RETURN(moving_, ReadBody(ctx_, *images_.moving, moving, images_.moving_masks[moving]));
  return absl::OkStatus();
}

// All candidates with their scores at the screening level.
absl::StatusOr<Trials> StartFinder::Screen(const std::vector<Quaternion>& rotations, bool is_first) {
  Trials trials = Proposed(rotations);
  INTRAWARP_RETURN_IF_ERROR(Evaluate(screening_, &trials));
  if (is_first) {
    screening_v0_ = MedianValue(trials);
    Trials header(1);
    INTRAWARP_RETURN_IF_ERROR(Evaluate(screening_, &header));
    trials.insert(trials.begin(), header.front());
  }
  Score(screening_v0_, &trials);
  return trials;
}

// Optimises the trials at the coarsest level, from where they stand.
absl::Status StartFinder::MeetAtCoarsest(const Trials& trials) {
  Trials before = trials;
  for (Trial& trial : before) trial.map = trial.candidate.start;
  INTRAWARP_RETURN_IF_ERROR(Evaluate(coarsest_, &before));
  Score(v0_, &before);
  Trials after = trials;
  for (size_t i = 0; i < after.size(); ++i) after[i].candidate.score_before = before[i].score;
  INTRAWARP_RETURN_IF_ERROR(OptimiseAll(coarsest_, kIterations, v0_, &after));
  for (Trial& trial : after) {
    if (!trial.score.has_value()) continue;
    trial.candidate.end = trial.map;
    trial.candidate.score_after = *trial.score;
    trial.candidate.overlap = trial.overlap;
    finals_.push_back(trial);
  }
  Rename(&finals_);
  return absl::OkStatus();
}

absl::Status StartFinder::Search(const std::vector<Quaternion>& rotations, bool is_first) {
  INTRAWARP_ASSIGN_OR_RETURN(const Trials screened, Screen(rotations, is_first));
  if (stopped_) return absl::OkStatus();
  Trials chosen = Screened(screened, is_slice_ ? kCoarsestOfSlice : kScreenedProper, kScreenedMirrored);
  if (screening_ != coarsest_) INTRAWARP_RETURN_IF_ERROR(OptimiseAll(screening_, kIterations, screening_v0_, &chosen));
  Trials last = Screened(chosen, is_slice_ ? kCoarsestOfSlice : kCoarsestProper, kCoarsestMirrored);
  std::copy_if(screened.begin(), screened.end(), std::back_inserter(last),
               [](const Trial& trial) { return trial.is_given(); });
  return MeetAtCoarsest(last);
}

// The best `proper` trials, header alignment where there are several of them, and the best mirrored one.
Trials StartFinder::Rivals(const Trials& trials, size_t proper) const {
  Trials rivals = BestOfBoth(trials, proper, kFinerMirrored);
  const auto is_header = [](const Trial& trial) { return trial.candidate.kind == StartKind::kHeader; };
  const auto header = std::find_if(trials.begin(), trials.end(), is_header);
  const bool is_in = std::any_of(rivals.begin(), rivals.end(), is_header);
  if (proper > 1 && !is_in && header != trials.end()) rivals.push_back(*header);
  return rivals;
}

// Close rivals are optimised at finer levels, until one is clearly ahead.
absl::Status StartFinder::Compare() {
  const size_t most = is_slice_ ? kFinerOfSlice : kFinerProper;
  rivals_ = Rivals(finals_, most);
  Judge();
  for (int level = coarsest_ - 1; level >= std::max(0, coarsest_ - kFinerLevels); --level) {
    const bool is_clear = !margin_.has_value() || *margin_ >= kClearMargin;
    const bool is_large = images_.fixed->levels()[level].volume.geometry.voxels() > kFinerVoxels;
    if (is_large || (is_clear && std::abs(mirror_lead_.value_or(1)) >= kClearMirror)) return absl::OkStatus();
    Trials next = Rivals(rivals_, is_clear ? 1 : most);
    Trials others = Sample();
    INTRAWARP_RETURN_IF_ERROR(Evaluate(level, &others));
    const double v0 = MedianValue(others);
    INTRAWARP_RETURN_IF_ERROR(OptimiseAll(level, kFinerIterations, v0, &next));
    if (stopped_ || Best(next, false, 1).empty()) return absl::OkStatus();
    Rename(&next);
    v0_ = v0;
    rivals_ = std::move(next);
    Judge();
  }
  return absl::OkStatus();
}

// The margin stays as it is where one proper rival is left of several.
void StartFinder::Judge() {
  const Trials proper = Best(rivals_, false, kFinerProper), mirrored = Best(rivals_, true, 1);
  if (proper.empty()) return;
  if (proper.size() > 1) margin_ = std::clamp(Lead(proper[0], proper[1], v0_), 0.0, 1.0);
  margin_ = proper[0].overlap < kLeastStartOverlap ? 0 : margin_.value_or(1);
  if (!mirrored.empty()) mirror_lead_ = ImageLead(mirrored[0], proper[0], v0_);
}

// The best rival; header alignment where it is as good as that.
const Trial* StartFinder::Winner(const Trials& proper) const {
  if (proper.empty()) return nullptr;
  const auto header = std::find_if(proper.begin(), proper.end(), [&](const Trial& trial) {
    return trial.candidate.kind == StartKind::kHeader && Lead(proper[0], trial, v0_) < kLeastStartMargin;
  });
  return header != proper.end() ? &*header : &proper[0];
}

// A trial that ended where header alignment (or else the centre of mass) ended, too, goes by that name.
void StartFinder::Rename(Trials* trials) const {
  const Trials before = *trials;
  for (Trial& trial : *trials) {
    for (const Trial& other : before) {
      if (trial.is_mirrored() || !other.is_given() || other.candidate.kind >= trial.candidate.kind) continue;
      if (!AreApart(other.map, trial.map)) trial.candidate = other.candidate;
    }
  }
}

StartSearch StartFinder::Result() const {
  StartSearch search;
  search.report.evaluations = evaluations_;
  const Trials proper = Best(rivals_, false, rivals_.size());
  const Trial* winner = Winner(proper);
  if (winner == nullptr) return search;
  search.kind = winner->candidate.kind;
  search.start = winner->candidate.start;
  search.found = winner->map;
  search.report.margin = margin_;
  search.report.mirror_lead = mirror_lead_;
  search.report.candidates.push_back(winner->candidate);
  for (const Trial& trial : BestOfBoth(finals_, finals_.size(), finals_.size())) {
    const bool is_winner = !trial.is_mirrored() && !AreApart(trial.candidate.end, winner->candidate.end);
    if (!is_winner) search.report.candidates.push_back(trial.candidate);
  }
  return search;
}

absl::StatusOr<StartSearch> StartFinder::Run() {
  INTRAWARP_RETURN_IF_ERROR(ReadBodies());
  Trials others = Proposed(rotations_);
  INTRAWARP_RETURN_IF_ERROR(Evaluate(coarsest_, &others));
  v0_ = MedianValue(others);
  INTRAWARP_RETURN_IF_ERROR(Search(rotations_, true));
  const std::optional<double> margin = Margin(Best(finals_, false, 2));
  if (!is_2d_ && !is_slice_ && !stopped_ && margin.value_or(1) < kClearMargin) {
    INTRAWARP_RETURN_IF_ERROR(Search(FineRotations(), false));
  }
  INTRAWARP_RETURN_IF_ERROR(Compare());
  return Result();
}

}  // namespace

MetricKind StartMetric(MetricKind metric) { return metric == MetricKind::kSsd ? MetricKind::kSsd : MetricKind::kNgf; }

absl::StatusOr<StartSearch> SearchStart(const ExecContext& ctx, const RegistrationImages& images, MetricKind metric) {
  return StartFinder(ctx, images, metric).Run();
}

}  // namespace intrawarp
