// SPDX-License-Identifier: Apache-2.0
#include "client/cli/registration_montage.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/verdict.h"
#include "client/cli/volume_file.h"
#include "engine/base/status_macros.h"
#include "wire/convert.h"

namespace intrawarp::cli {
namespace {

// Hounsfield units are the same everywhere; other modalities have scales of their own, and unlike ones compare by
// nothing.
std::optional<io::IntensityRelation> RelationOf(const std::string& fixed, const std::string& moving) {
  if (fixed.empty() || moving.empty()) return std::nullopt;
  if (fixed != moving) return io::IntensityRelation::kOther;
  return fixed == "CT" ? std::optional(io::IntensityRelation::kSame) : std::nullopt;
}

std::optional<io::ErrorBlocks> BlocksOf(const v1::Report& report) {
  if (!report.has_error_map()) return std::nullopt;
  const absl::StatusOr<Geometry> geometry = GeometryFromProto(report.error_map().geometry());
  if (!geometry.ok() || geometry->voxels() != report.error_map().expected_mm_size()) return std::nullopt;
  io::ErrorBlocks blocks;
  blocks.geometry = *geometry;
  blocks.expected_mm.assign(report.error_map().expected_mm().begin(), report.error_map().expected_mm().end());
  if (report.options().has_error_limit_mm()) blocks.limit_mm = report.options().error_limit_mm();
  return blocks;
}

// Nothing where nothing is missing, or the server's map is not one.
std::optional<io::MissingNodes> MissingOf(const v1::Report& report) {
  const v1::MissingTissue& missing = report.missing_tissue();
  if (missing.nodes().empty()) return std::nullopt;
  const absl::StatusOr<Geometry> geometry = GeometryFromProto(missing.geometry());
  if (!geometry.ok()) return std::nullopt;
  const auto voxels = static_cast<size_t>(geometry->voxels());
  if (missing.nodes().size() != (voxels + 7) / 8) return std::nullopt;
  io::MissingNodes nodes{*geometry, std::vector<uint8_t>(voxels)};
  for (size_t i = 0; i < voxels; ++i) nodes.nodes[i] = static_cast<uint8_t>(missing.nodes()[i / 8]) >> i % 8 & 1;
  return nodes;
}

std::string TimeOf(const v1::ReportProvenance& from) {
  const absl::Time time = from.has_report_time() ? absl::FromUnixSeconds(from.report_time().seconds()) : absl::Now();
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

// "fixed CT 1a2b3c4d": a digest tells images apart without naming anybody.
std::string ImageText(const char* what, const std::string& modality, const std::string& digest) {
  const std::string digits = absl::BytesToHexString(digest).substr(0, 8);
  if (modality.empty() && digits.empty()) return "";
  return absl::StrCat("; ", what, modality.empty() ? "" : " ", modality, digits.empty() ? "" : " ", digits);
}

std::string JudgedText(const v1::Report& report) {
  if (!report.has_error()) return "";
  return absl::StrFormat(
      " (medians over the %.0f %% of what both images show that has structure; half of the tissue is better, half "
      "worse)",
      100 * report.error().judged_fraction());
}

}  // namespace

absl::StatusOr<FetchedImage> FetchImage(const std::string& x, CommandContext& context) {
  FetchedImage fetched;
  if (!IsVolumeName(x)) {
    INTRAWARP_ASSIGN_OR_RETURN(const LoadedVolume loaded,
                               LoadVolume(x, {.orientation = context.assumed_orientation()}));
    fetched.image.geometry = loaded.volume.geometry;
    fetched.image.values = io::ToFloat(loaded.volume);
    fetched.image.has_orientation = loaded.volume.has_orientation;
    fetched.modality = loaded.provenance.modality();
    return fetched;
  }
  client::GridData data;
  INTRAWARP_ASSIGN_OR_RETURN(const v1::Volume volume,
                             context.client().DownloadVolume(x, client::SinkInto(&data), context.call()));
  fetched.image.geometry = data.geometry;
  fetched.image.values = std::move(data.values);
  fetched.modality = volume.provenance().modality();
  return fetched;
}

io::MontageOptions MontageOptionsOf(const std::string& fixed_modality, const std::string& moving_modality,
                                    const std::string& method, const v1::Report& report) {
  io::MontageOptions options;
  options.relation = RelationOf(fixed_modality, moving_modality);
  options.error = BlocksOf(report);
  options.missing = MissingOf(report);
  options.is_good = IsOk(report);
  options.heading = options.is_good ? "Verdict: ok" : absl::StrCat("Verdict: ", VerdictWord(report), " before use");
  const std::string reasons = absl::StrJoin(ReasonTexts(report), "; ");
  if (!reasons.empty()) options.remarks.push_back(reasons);
  options.remarks.push_back(absl::StrCat(ExpectedErrorText(report), JudgedText(report)));
  const v1::ReportProvenance& from = report.provenance();
  const std::string version =
      from.server_version().empty() ? "" : absl::StrCat(" ", from.server_version(), " (", from.server_revision(), ")");
  options.footer =
      absl::StrCat("intrawarp", version, "; ", method, " on ", report.device(), "; ", TimeOf(from),
                   ImageText("fixed", fixed_modality, from.fixed_digest()),
                   ImageText("moving", moving_modality, from.moving_digest()), "; research use, not a medical device");
  return options;
}

absl::StatusOr<io::Picture> RenderRegistration(MontageInputs inputs, const std::string& method,
                                               const v1::Report& report) {
  io::MontageOptions options = MontageOptionsOf(inputs.fixed.modality, inputs.moving.modality, method, report);
  options.at = inputs.at;
  const io::HostImage warped = {inputs.warped.geometry, std::move(inputs.warped.values)};
  const io::HostField field = {inputs.field.geometry, std::move(inputs.field.values)};
  return io::RenderMontage(inputs.fixed.image, inputs.moving.image, warped, field, options);
}

}  // namespace intrawarp::cli
