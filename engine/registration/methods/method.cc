// SPDX-License-Identifier: Apache-2.0
#include "engine/registration/methods/method.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/registration/methods/affine.h"
#include "engine/registration/methods/ffd.h"
#include "engine/registration/methods/log_demons.h"
#include "engine/registration/methods/search.h"

namespace intrawarp {
namespace {

constexpr const Method* kMethods[] = {&kRigidMethod, &kAffineMethod, &kFfdMethod, &kLogDemonsMethod, &kSearchMethod};
static_assert(std::size(kMethods) == std::variant_size_v<StageOptions>);

MetricKind MetricOfOptions(const LogDemonsOptions&) { return LogDemonsOptions::kDefaultMetric; }
MetricKind MetricOfOptions(const SearchOptions&) { return SearchOptions::kDefaultMetric; }
template <typename Options>
MetricKind MetricOfOptions(const Options& options) {
  return options.metric.value_or(Options::kDefaultMetric);
}

}  // namespace

absl::Span<const Method* const> Methods() { return kMethods; }

const Method& MethodOf(const StageOptions& options) { return *kMethods[options.index()]; }

absl::string_view MethodName(const StageOptions& options) { return MethodOf(options).name; }

std::optional<StageOptions> StageNamed(absl::string_view name) {
  for (const Method* method : kMethods) {
    if (method->name == name) return method->unset;
  }
  return std::nullopt;
}

MetricKind MetricOf(const StageOptions& options) {
  return std::visit([](const auto& of_method) { return MetricOfOptions(of_method); }, options);
}

StageOptions Resolved(const StageOptions& options, const Geometry& fixed) {
  return MethodOf(options).resolved(options, fixed);
}

StageOptions WithLevels(StageOptions options, int levels) {
  const auto set = [&](auto& of_method) {
    if constexpr (requires { of_method.levels; }) of_method.levels = levels;
  };
  std::visit(set, options);
  return options;
}

absl::Status ValidateRange(absl::string_view field, std::optional<double> value, double low, double high) {
  if (!value.has_value() || (*value >= low && *value <= high)) return absl::OkStatus();
  return FieldError(absl::StatusCode::kInvalidArgument, field,
                    absl::StrCat(*value, " is not in [", low, ", ", high, "]"));
}

absl::Status ValidateMetric(std::optional<MetricKind> metric) {
  if (metric != MetricKind::kMind) return absl::OkStatus();
  return FieldError(absl::StatusCode::kUnimplemented, "metric", "mind is only for ffd and search in this version");
}

absl::Status ValidateEffort(std::optional<int> levels, std::optional<int> iterations) {
  INTRAWARP_RETURN_IF_ERROR(ValidateRange("levels", levels, 1, kMaxLevels));
  return ValidateRange("iterations", iterations, 1, kMaxIterations);
}

}  // namespace intrawarp
