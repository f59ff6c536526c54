// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/automatic.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/quality/deformation_gate.h"
#include "engine/quality/residual_probe.h"
#include "engine/registration/automatic_steps.h"
#include "engine/registration/choose/automatic_rules.h"
#include "engine/registration/methods/affine.h"
#include "engine/registration/methods/ffd.h"
#include "engine/registration/methods/method.h"
#include "engine/registration/methods/search.h"
#include "engine/registration/start/body.h"
#include "engine/transform/undeformed.h"

namespace intrawarp {
namespace {

FfdOptions DeformableStage(MetricKind metric) {
  return FfdOptions{.metric = metric, .bending_weight = FfdOptions::DefaultBendingWeight(metric)};
}

// MIND on the features of the search, which are not deceived by what intensities do.
FfdOptions FeatureStage() {
  return FfdOptions{.metric = MetricKind::kMind, .spacing_vox = kFineSpacingVox, .bending_weight = kFeatureBending};
}

// LNCC at the finest level, after a stage that has found the deformation.
FfdOptions DetailStage() {
  return FfdOptions{
      .metric = MetricKind::kLncc, .levels = 1, .spacing_vox = kFineSpacingVox, .bending_weight = kDetailBending};
}

DeformationTrial TrialOf(const FfdOptions& options) {
  DeformationTrial trial;
  trial.metric = *options.metric;
  trial.bending_weight = *options.bending_weight;
  return trial;
}

DeformationTrial WithoutResult(DeformationTrial trial) {
  trial.has_result = trial.is_accepted = false;
  return trial;
}

double NodeSide(const ResidualProbe& probe) { return std::min(probe.node_mm.x, probe.node_mm.y); }

class AutomaticRegistration {
 public:
  AutomaticRegistration(const ExecContext& ctx, const RegistrationInput& input, const RegistrationImages& images)
      : ctx_(ctx), input_(input), images_(images), fixed_(input.fixed->geometry()) {}

  absl::StatusOr<RegistrationResult> Run() {
    INTRAWARP_RETURN_IF_ERROR(FindStart());
    INTRAWARP_RETURN_IF_ERROR(AlignAffinely());
    INTRAWARP_RETURN_IF_ERROR(Deform());
    INTRAWARP_ASSIGN_OR_RETURN(result_.worse_than_start, IsWorse());
    result_.choice = std::move(choice_);
    return std::move(result_);
  }

 private:
  struct Aligned {
    StageResult stage;
    // Measured on its result, unless a budget ended it.
    ResidualProbe probe;
    std::optional<ErrorEstimate> error;
    // Its place in choice_.affine.
    size_t trial = 0;

    const AffineMap& map() const { return stage.transform.affine(); }
  };
  struct Deformed {
    StageResult stage;
    // The stages from the affine part, or, after a search, from the start to this result; the last one is its own.
    std::vector<StageOptions> stages;
    // The reports of the stages before it.
    std::vector<StageReport> reports;
    // Its place in choice_.deformations.
    size_t trial = 0;
  };

  absl::Status FindStart();
  absl::Status AlignAffinely();
  absl::StatusOr<Aligned> TryAffine(MetricKind metric);
  absl::Status Estimate(Aligned* affine);
  absl::Status TakeMean(const std::vector<Aligned>& tried);
  absl::Status Deform();
  absl::Status TryDeformation(AutomaticStep step, const FfdOptions& options);
  absl::Status TryAnotherDeformation(AutomaticStep step, const FfdOptions& options);
  absl::Status TryWithLncc();
  absl::Status TryDetail();
  absl::Status RefineBest();
  absl::Status TrySearch();
  absl::Status SearchAndDeform();
  absl::StatusOr<StageResult> RunAfter(AutomaticStep step, const FfdOptions& options, const AffineMap& start,
                                       const Transform& earlier);
  absl::StatusOr<DeformationTrial> Judge(const FfdOptions& options, const Transform& transform);
  absl::StatusOr<DeformationTrial> JudgeAgainst(const ResidualProbe& probe, const std::optional<ErrorEstimate>& error,
                                                const FfdOptions& options, const Transform& transform);
  const DeformationTrial& Best() const { return choice_.deformations[best_->trial]; }
  bool HasAccepted() const { return Best().is_accepted; }
  absl::Status Answer();
  absl::StatusOr<bool> IsWorse();

  absl::StatusOr<StageResult> RunStep(AutomaticStep step, const StageOptions& resolved, const AffineMap& start,
                                      const Transform* initial = nullptr, Effort effort = Effort::kWhole) {
    return MethodOf(resolved).run(ctx_, {images_, resolved, static_cast<int>(step), start, initial, effort});
  }
  absl::StatusOr<ResidualProbe> Probe(const Transform& transform) {
    return ProbeResidual(ctx_, *images_.fixed, *images_.moving, images_.fixed_masks[0].mask,
                         images_.moving_masks[0].mask, transform);
  }
  const AffineMap& Affine() const { return affine_.stage.transform.affine(); }
  StageOptions ResolvedStage(const StageOptions& stage) const { return Resolved(stage, fixed_); }

  const ExecContext& ctx_;
  const RegistrationInput& input_;
  const RegistrationImages& images_;
  const Geometry& fixed_;
  // The start of the affine trials, and the start that the result is compared with.
  AffineMap start_ = AffineMap::Identity();
  std::optional<Transform> first_start_;
  // The start of a discrete search, as that method by name would take it.
  AffineMap search_start_ = AffineMap::Identity();
  Aligned affine_;
  // The best deformation so far, or the last that was rejected.
  std::optional<Deformed> best_;
  Choice choice_;
  RegistrationResult result_;
  // A budget has ended a stage.
  bool is_stopped_ = false;
};

absl::Status AutomaticRegistration::FindStart() {
  if (input_.initial_transform != nullptr) {
    start_ = input_.initial_transform->affine();
    first_start_ = *input_.initial_transform;
  } else if (input_.initial.has_value()) {
    start_ = *input_.initial;
    first_start_ = Transform(start_);
  } else {
    INTRAWARP_ASSIGN_OR_RETURN(StartSearch search, SearchStart(ctx_, images_, SearchMetric(fixed_)));
    start_ = search.found;
    first_start_ = Transform(search.start);
    search_start_ = search.kind == StartKind::kRotation ? search.found : search.start;
    result_.starts = std::move(search.report);
    return absl::OkStatus();
  }
  search_start_ = start_;
  return absl::OkStatus();
}

// FAILED_PRECONDITION where the metric is undefined at the start: another one may not be.
absl::StatusOr<AutomaticRegistration::Aligned> AutomaticRegistration::TryAffine(MetricKind metric) {
  const StageOptions options = ResolvedStage(AffineOptions{.metric = metric});
  Aligned affine;
  INTRAWARP_ASSIGN_OR_RETURN(affine.stage, RunStep(AffineStep(metric), options, start_));
  if (affine.stage.report.stop_reason == StopReason::kBudget) return affine;
  INTRAWARP_RETURN_IF_ERROR(Estimate(&affine));
  return affine;
}

absl::Status AutomaticRegistration::Estimate(Aligned* affine) {
  INTRAWARP_ASSIGN_OR_RETURN(affine->probe, Probe(affine->stage.transform));
  affine->error = PredictError(affine->probe);
  return absl::OkStatus();
}

absl::Status AutomaticRegistration::AlignAffinely() {
  std::vector<Aligned> tried;
  size_t best = 0;
  absl::Status failure;
  for (const MetricKind metric : AffineMetrics(fixed_)) {
    absl::StatusOr<Aligned> affine = TryAffine(metric);
    if (!affine.ok() && !absl::IsFailedPrecondition(affine.status())) return affine.status();
    choice_.affine.push_back({metric, std::nullopt, affine.ok(), false});
    failure.Update(affine.status());
    if (!affine.ok()) continue;
    choice_.affine.back().error = affine->error;
    is_stopped_ = is_stopped_ || affine->stage.report.stop_reason == StopReason::kBudget;
    affine->trial = choice_.affine.size() - 1;
    if (!tried.empty() && IsAhead(affine->error, tried[best].error)) best = tried.size();
    tried.push_back(*std::move(affine));
    if (is_stopped_) break;
  }
  if (tried.empty()) return failure;
  std::swap(tried.front(), tried[best]);
  affine_ = tried.front();
  AffineTrial& chosen = choice_.affine[affine_.trial];
  chosen.is_chosen = true;
  choice_.stages.push_back(AffineOptions{.metric = chosen.metric});
  result_.stages.push_back(affine_.stage.report);
  return is_stopped_ ? absl::OkStatus() : TakeMean(tried);
}

// Puts the mean of those results that are estimates of one map in the place of the best, which is the first. Their
// errors come from different metrics and cancel in part.
absl::Status AutomaticRegistration::TakeMean(const std::vector<Aligned>& tried) {
  std::vector<Vec3d> places;
  for (const MatchedBlock& block : MatchedBlocks(affine_.probe)) places.push_back(block.centre);
  const double most_mm = kOneMapNodes * NodeSide(affine_.probe);
  std::vector<AffineMap> maps;
  std::vector<size_t> trials;
  for (const Aligned& other : tried) {
    const bool is_behind = IsAhead(affine_.error, other.error);
    if (is_behind || MeanDistance(places, affine_.map(), other.map()) > most_mm) continue;
    maps.push_back(other.map());
    trials.push_back(other.trial);
  }
  if (!affine_.error.has_value() || maps.size() < 2) return absl::OkStatus();
  Aligned mean = affine_;
  mean.stage.transform = Transform(MeanOf(maps), fixed_);
  mean.stage.value.reset();
  INTRAWARP_RETURN_IF_ERROR(Estimate(&mean));
  if (!mean.error.has_value() || IsAhead(affine_.error, mean.error)) return absl::OkStatus();
  affine_ = std::move(mean);
  for (const size_t trial : trials) choice_.affine[trial].is_chosen = true;
  return absl::OkStatus();
}

absl::Status AutomaticRegistration::Deform() {
  if (!is_stopped_) {
    INTRAWARP_ASSIGN_OR_RETURN(choice_.intensities, MeasureIntensityRelation(ctx_, images_, Affine()));
  }
  choice_.reason = ReasonFor(fixed_, choice_.intensities);
  INTRAWARP_RETURN_IF_ERROR(TryDeformation(AutomaticStep::kDeformation, DeformableStage(MetricKind::kNmi)));
  if (choice_.reason == ChoiceReason::kLinearIntensities) INTRAWARP_RETURN_IF_ERROR(TryWithLncc());
  if (!HasAccepted() && !is_stopped_ && TakesStrongBending(affine_.error)) {
    INTRAWARP_RETURN_IF_ERROR(TryAnotherDeformation(
        AutomaticStep::kStrongBending, FfdOptions{.metric = MetricKind::kNmi, .bending_weight = kStrongBending}));
  }
  return Answer();
}

// LNCC after a search where that may be better. Where it does not lead, LNCC continues the deformation of NMI, or,
// where that was rejected, begins at the affine part.
absl::Status AutomaticRegistration::TryWithLncc() {
  if (is_stopped_) return absl::OkStatus();
  if (!HasAccepted()) {
    return TryAnotherDeformation(AutomaticStep::kLocalDeformation, DeformableStage(MetricKind::kLncc));
  }
  if (TakesSearch(affine_.error, Best())) INTRAWARP_RETURN_IF_ERROR(TrySearch());
  const bool leads = Best().is_searched;
  return leads || is_stopped_ ? absl::OkStatus() : TryDetail();
}

// Runs an ffd stage from the affine result and keeps its result where it is the best so far. The best so far and the
// new one are two results, which AutomaticTransformBytes() counts.
absl::Status AutomaticRegistration::TryDeformation(AutomaticStep step, const FfdOptions& options) {
  const StageOptions resolved = ResolvedStage(options);
  INTRAWARP_ASSIGN_OR_RETURN(StageResult stage, RunStep(step, resolved, Affine(), input_.initial_transform));
  is_stopped_ = is_stopped_ || stage.report.stop_reason == StopReason::kBudget;
  INTRAWARP_ASSIGN_OR_RETURN(DeformationTrial trial, Judge(options, stage.transform));
  const DeformationTrial* best = best_.has_value() ? &choice_.deformations[best_->trial] : nullptr;
  // One that a budget ended is not compared with one that was accepted.
  const bool is_comparable = best == nullptr || !best->is_accepted || !is_stopped_;
  const bool is_better = best == nullptr || (is_comparable && TakesTheLead(trial, *best, input_.keep_deformation));
  if (is_better) best_ = Deformed{std::move(stage), {options}, {}, choice_.deformations.size()};
  choice_.deformations.push_back(std::move(trial));
  return absl::OkStatus();
}

// The same with a result already, which remains where the stage has none.
absl::Status AutomaticRegistration::TryAnotherDeformation(AutomaticStep step, const FfdOptions& options) {
  const absl::Status status = TryDeformation(step, options);
  if (!absl::IsFailedPrecondition(status)) return status;
  choice_.deformations.push_back(WithoutResult(TrialOf(options)));
  return absl::OkStatus();
}

absl::StatusOr<StageResult> AutomaticRegistration::RunAfter(AutomaticStep step, const FfdOptions& options,
                                                            const AffineMap& start, const Transform& earlier) {
  const StageOptions resolved = ResolvedStage(options);
  INTRAWARP_ASSIGN_OR_RETURN(StageResult stage, RunStep(step, resolved, start, &earlier, Effort::kAfterStage));
  is_stopped_ = stage.report.stop_reason == StopReason::kBudget;
  return stage;
}

// Tries to refine the best deformation. A failed try leaves it as it is.
absl::Status AutomaticRegistration::TryDetail() {
  const absl::Status status = RefineBest();
  if (!absl::IsFailedPrecondition(status)) return status;
  DeformationTrial trial = WithoutResult(TrialOf(DetailStage()));
  trial.is_refinement = true;
  choice_.deformations.push_back(std::move(trial));
  return absl::OkStatus();
}

absl::Status AutomaticRegistration::RefineBest() {
  const FfdOptions options = DetailStage();
  INTRAWARP_ASSIGN_OR_RETURN(StageResult stage,
                             RunAfter(AutomaticStep::kDetail, options, Affine(), best_->stage.transform));
  INTRAWARP_ASSIGN_OR_RETURN(DeformationTrial trial, Judge(options, stage.transform));
  trial.is_refinement = true;
  if (!is_stopped_ && RefinementLeads(trial, Best())) {
    best_->reports.push_back(std::move(best_->stage.report));
    best_->stages.push_back(options);
    best_->stage = std::move(stage);
    best_->trial = choice_.deformations.size();
  }
  choice_.deformations.push_back(std::move(trial));
  return absl::OkStatus();
}

// Tries a search with ffd stages after it. A failed one leaves the earlier result as it is.
absl::Status AutomaticRegistration::TrySearch() {
  const absl::Status status = SearchAndDeform();
  if (!absl::IsFailedPrecondition(status)) return status;
  DeformationTrial trial = WithoutResult(TrialOf(DetailStage()));
  trial.is_searched = true;
  choice_.deformations.push_back(std::move(trial));
  return absl::OkStatus();
}

// The affine part of such a result is only the map of the start.
absl::Status AutomaticRegistration::SearchAndDeform() {
  const FfdOptions options = DetailStage();
  INTRAWARP_ASSIGN_OR_RETURN(StageResult search,
                             RunStep(AutomaticStep::kSearch, ResolvedStage(SearchOptions{}), search_start_));
  is_stopped_ = search.report.stop_reason == StopReason::kBudget;
  if (is_stopped_) return absl::OkStatus();
  INTRAWARP_ASSIGN_OR_RETURN(StageResult stage,
                             RunAfter(AutomaticStep::kFeatures, FeatureStage(), search_start_, search.transform));
  if (is_stopped_) return absl::OkStatus();
  // Its memory is free again before the next stage: the claim holds no more (AutomaticTransformBytes).
  search.transform = Transform(search_start_);
  std::vector<StageReport> reports = {std::move(search.report), std::move(stage.report)};
  INTRAWARP_ASSIGN_OR_RETURN(stage,
                             RunAfter(AutomaticStep::kDetailAfterSearch, options, search_start_, stage.transform));
  INTRAWARP_ASSIGN_OR_RETURN(const ResidualProbe before, Probe(Transform(search_start_)));
  INTRAWARP_ASSIGN_OR_RETURN(DeformationTrial trial,
                             JudgeAgainst(before, PredictError(before), options, stage.transform));
  trial.is_searched = true;
  if (!is_stopped_ && SearchLeads(trial, Best())) {
    best_ = Deformed{
        std::move(stage), {SearchOptions{}, FeatureStage(), options}, std::move(reports), choice_.deformations.size()};
  }
  choice_.deformations.push_back(std::move(trial));
  return absl::OkStatus();
}

absl::StatusOr<DeformationTrial> AutomaticRegistration::Judge(const FfdOptions& options, const Transform& transform) {
  return JudgeAgainst(affine_.probe, affine_.error, options, transform);
}

// `before` and `error` are of the affine part of `transform`.
absl::StatusOr<DeformationTrial> AutomaticRegistration::JudgeAgainst(const ResidualProbe& before,
                                                                     const std::optional<ErrorEstimate>& error,
                                                                     const FfdOptions& options,
                                                                     const Transform& transform) {
  DeformationTrial trial = TrialOf(options);
  if (!error.has_value()) return trial;
  INTRAWARP_ASSIGN_OR_RETURN(const ResidualProbe probe, Probe(transform));
  trial.error = PredictError(probe);
  if (!trial.error.has_value()) return trial;
  const GateImages images{*images_.fixed, *images_.moving, images_.fixed_masks[0].mask, images_.moving_masks[0].mask};
  INTRAWARP_ASSIGN_OR_RETURN(const GateAnswer answer,
                             JudgeDeformation(ctx_, images, transform, {before, *error}, {probe, *trial.error},
                                              FitsALine(choice_.intensities)));
  trial.error = answer.error;
  trial.gain = answer.gain();
  trial.deformation_mm = answer.evidence.deformation_mm;
  trial.contradicts = answer.contradicts;
  trial.is_accepted = answer.is_accepted;
  return trial;
}

// Makes the result of the best deformation, or, where that was rejected and is not kept, of the affine part in its
// form.
absl::Status AutomaticRegistration::Answer() {
  DeformationTrial& trial = choice_.deformations[best_->trial];
  trial.is_chosen = true;
  result_.stop_reason = is_stopped_ ? StopReason::kBudget : best_->stage.report.stop_reason;
  if (trial.is_searched) {
    choice_.stages.clear();
    result_.stages.clear();
    for (AffineTrial& affine : choice_.affine) affine.is_chosen = false;
  }
  std::move(best_->reports.begin(), best_->reports.end(), std::back_inserter(result_.stages));
  result_.stages.push_back(std::move(best_->stage.report));
  result_.transform = std::move(best_->stage.transform);
  choice_.stages.insert(choice_.stages.end(), best_->stages.begin(), best_->stages.end());
  choice_.error = trial.is_accepted || input_.keep_deformation ? trial.error : affine_.error;
  if (!trial.is_accepted) choice_.rejected_gain = trial.gain;
  choice_.keeps_rejected = !trial.is_accepted && input_.keep_deformation;
  if (trial.is_accepted || input_.keep_deformation) return absl::OkStatus();
  HoldAgainstAffine(*affine_.error, trial.deformation_mm, *choice_.error);
  best_->stage.value.reset();
  INTRAWARP_ASSIGN_OR_RETURN(result_.transform, Undeformed(ctx_, std::move(result_.transform)));
  return absl::OkStatus();
}

absl::StatusOr<bool> AutomaticRegistration::IsWorse() {
  const StageOptions last = ResolvedStage(best_->stages.back());
  const auto objective = [&](const Transform& transform) {
    return kFfdMethod.objective(ctx_, images_, last, transform);
  };
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> before, objective(*first_start_));
  std::optional<double> after = best_->stage.value;
  if (!after.has_value()) {
    INTRAWARP_ASSIGN_OR_RETURN(after, objective(result_.transform));
  }
  return IsClearlyWorse(before, after);
}

}  // namespace

int64_t AutomaticWorkspaceBytes(const Device& device, const RegistrationInput& input) {
  const PreparedImage &fixed = *input.fixed, &moving = *input.moving;
  int64_t bytes = static_cast<int64_t>(
      std::max(ResidualProbeWorkspaceBytes(fixed.geometry()), MeanDeformationWorkspaceBytes(fixed.geometry())));
  std::vector<StageOptions> stages = {RigidOptions{.metric = SearchMetric(fixed.geometry())}};
  for (const std::vector<StageOptions>& pipeline : AutomaticPipelines(fixed.geometry())) {
    stages.insert(stages.end(), pipeline.begin(), pipeline.end());
  }
  for (const StageOptions& stage : stages) {
    const StageOptions resolved = Resolved(stage, fixed.geometry());
    bytes = std::max(bytes, MethodOf(resolved).workspace_bytes(device, fixed, moving, resolved));
  }
  return bytes;
}

int64_t AutomaticResultBytes(const Geometry& fixed) {
  const int64_t aligned = StageResultBytes(DeformableStage(MetricKind::kNmi), fixed);
  return fixed.is_2d() ? aligned : std::max(aligned, StageResultBytes(DetailStage(), fixed));
}

// The best deformation so far stays beside another from the affine part, beside a search and the stage after it, or
// beside two stages after a search. The one that is refined is of NMI.
int64_t AutomaticTransformBytes(const Geometry& fixed) {
  const int64_t aligned = StageResultBytes(DeformableStage(MetricKind::kNmi), fixed);
  if (fixed.is_2d()) return 2 * aligned;
  const int64_t fine = StageResultBytes(DetailStage(), fixed);
  return aligned + std::max({aligned, StageResultBytes(SearchOptions{}, fixed) + fine, 2 * fine});
}

absl::StatusOr<RegistrationResult> RegisterAutomatically(const ExecContext& ctx, const RegistrationInput& input,
                                                         const RegistrationImages& images) {
  return AutomaticRegistration(ctx, input, images).Run();
}

std::vector<StageOptions> AutomaticStages() {
  const FfdOptions deformable{.metric = MetricKind::kNmi};
  return {AffineOptions{.metric = MetricKind::kNmi}, SearchOptions{}, deformable, DetailStage()};
}

std::vector<std::vector<StageOptions>> AutomaticPipelines(const Geometry& fixed) {
  const std::vector<MetricKind> metrics = AffineMetrics(fixed);
  std::vector<StageOptions> aligned;
  if (SearchMetric(fixed) != metrics.front()) aligned.push_back(RigidOptions{.metric = SearchMetric(fixed)});
  for (const MetricKind metric : metrics) aligned.push_back(AffineOptions{.metric = metric});
  aligned.push_back(DeformableStage(MetricKind::kNmi));
  if (fixed.is_2d()) return {aligned};
  return {aligned,
          {AffineOptions{.metric = metrics.back()}, DeformableStage(MetricKind::kNmi), DetailStage()},
          {AffineOptions{.metric = metrics.back()}, DeformableStage(MetricKind::kLncc)},
          {SearchOptions{}, FeatureStage(), DetailStage()}};
}

}  // namespace intrawarp
