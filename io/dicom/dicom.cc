// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/dicom.h"

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcdatset.h>
#include <dcmtk/dcmdata/dcdeftag.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/field_error.h"
#include "engine/base/memory_guard.h"
#include "engine/base/status_macros.h"
#include "io/dicom/agreement.h"
#include "io/dicom/dataset.h"
#include "io/dicom/instance.h"
#include "io/dicom/pixels.h"
#include "io/dicom/search.h"
#include "io/dicom/selection.h"
#include "io/dicom/stack.h"
#include "io/dicom/volume.h"

namespace intrawarp::io {
namespace {

using dicom::Instance;
using dicom::Stack;

constexpr size_t kShortHash = 16;
constexpr size_t kLeastHash = 8;
constexpr size_t kChoicesTold = 8;

// A volume that might be made.
struct Candidate {
  DicomEntry entry;
  Stack stack;
  dicom::Grid grid;
};

struct Scan {
  DicomListing counts;
  std::map<std::string, absl::Status> contradictions;  // by series
  std::vector<Instance> instances;
  std::vector<Candidate> candidates;
};

// ---- Files ----------------------------------------------------------------------------------------------------------

absl::Status CheckTotal(const std::vector<std::string>& files, const DicomLimits& limits) {
  int64_t total = 0;
  for (const std::string& file : files) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(file, error);
    if (!error) total += static_cast<int64_t>(bytes);
    if (total > limits.max_total_bytes) {
      return FieldError(absl::StatusCode::kResourceExhausted, "file",
                        absl::StrCat("the files have more than ", limits.max_total_bytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

Instance Describe(dicom::Dataset& dataset, const std::string& path, const DicomLimits& limits) {
  Instance instance = dicom::DescribeInstance(*dataset.data, limits.max_frames);
  instance.path = path;
  if (!dataset.status.ok()) {
    instance.has_image = true;
    instance.status = dataset.status;
  } else if (instance.has_image && instance.status.ok()) {
    instance.status = dicom::PixelReader::Open(dataset.data.get(), instance.layout).status();
  }
  if (!instance.status.ok()) instance.frames.clear();
  return instance;
}

void Count(Instance instance, Scan* scan) {
  if (!instance.has_image) {
    ++scan->counts.not_images;
  } else if (!instance.status.ok() && instance.provenance.series.empty()) {
    ++scan->counts.broken;
    if (scan->counts.broken == 1) scan->instances.push_back(std::move(instance));
  } else {
    scan->instances.push_back(std::move(instance));
  }
}

absl::Status DescribeFiles(const std::vector<std::string>& files, const DicomLimits& limits, Scan* scan) {
  INTRAWARP_RETURN_IF_ERROR(CheckTotal(files, limits));
  int64_t frames = 0;
  for (const std::string& file : files) {
    ++scan->counts.files;
    absl::StatusOr<dicom::Dataset> dataset = dicom::ReadDataset(file, limits);
    if (!dataset.ok()) return dataset.status();
    if (dataset->data == nullptr) {
      ++scan->counts.not_dicom;
      continue;
    }
    Instance instance = Describe(*dataset, file, limits);
    frames += static_cast<int64_t>(instance.frames.size());
    if (frames > limits.max_frames) {
      return FieldError(absl::StatusCode::kResourceExhausted, "frames", absl::StrCat("more than ", limits.max_frames));
    }
    Count(std::move(instance), scan);
  }
  return absl::OkStatus();
}

// A file, or the files that a DICOMDIR names.
absl::Status DescribeFile(const std::string& path, const DicomLimits& limits, Scan* scan) {
  INTRAWARP_ASSIGN_OR_RETURN(dicom::Dataset dataset, dicom::ReadDataset(path, limits));
  if (dataset.data == nullptr) return dataset.status;
  Instance instance = Describe(dataset, path, limits);
  if (instance.is_directory && dataset.status.ok()) {
    INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                               dicom::FilesOfDirectory(*dataset.data, path, limits));
    dataset.data.reset();
    return DescribeFiles(files, limits, scan);
  }
  ++scan->counts.files;
  Count(std::move(instance), scan);
  return absl::OkStatus();
}

// ---- Volumes --------------------------------------------------------------------------------------------------------

void AddUnique(const std::string& note, std::vector<std::string>* notes) {
  if (std::find(notes->begin(), notes->end(), note) == notes->end()) notes->push_back(note);
}

// Colour images in a series (a picture of the plan, say) are not slices of it.
bool IsColour(const Instance& instance) {
  return absl::IsUnimplemented(instance.status) && absl::StartsWith(instance.status.message(), "photometric: ");
}

// The first failure of a slice of the same series: a volume without it might silently be too short.
absl::Status FailureIn(const std::vector<Instance>& instances, const Instance& of) {
  for (const Instance& instance : instances) {
    if (instance.status.ok() || instance.provenance.series != of.provenance.series || IsColour(instance)) continue;
    absl::Status status(instance.status.code(), absl::StrCat(instance.status.message(), " (one file of the series)"));
    const std::string field = FieldOf(instance.status);
    if (!field.empty()) status.SetPayload(kFieldPayload, absl::Cord(field));
    return status;
  }
  return absl::OkStatus();
}

// How many images of a series are here, and how many there are. Scanners announce those of the series or of each
// acquisition: the latter where one of them is whole by its own number.
void CountImages(const Scan& scan, const Instance& of, DicomEntry* entry) {
  struct Acquisition {
    int64_t images = 0, announced = -1;
  };
  std::map<double, Acquisition> acquisitions;
  for (const Instance& instance : scan.instances) {
    const bool is_of_series =
        instance.provenance.series == of.provenance.series && instance.provenance.subject == of.provenance.subject;
    if (!is_of_series || IsColour(instance)) continue;
    const double number = instance.frames.empty() ? dicom::kAbsent : instance.frames[0].acquisition;
    Acquisition& acquisition = acquisitions[std::isnan(number) ? -1 : number];
    ++acquisition.images;
    acquisition.announced = std::max(acquisition.announced, instance.announced);
  }
  int64_t most = -1, sum = 0;
  bool is_each = false;
  for (const auto& [number, acquisition] : acquisitions) {
    entry->series_images += acquisition.images;
    most = std::max(most, acquisition.announced);
    sum += std::max(acquisition.images, acquisition.announced);
    is_each = is_each || (acquisition.announced > 0 && acquisition.images >= acquisition.announced);
  }
  entry->announced_images = is_each ? sum : most;
  if (entry->series_images >= entry->announced_images) return;
  entry->notes.emplace_back("fewer images are here than its files say that the series has");
}

absl::Status Plan(const Scan& scan, const DicomOptions& options, Candidate* candidate) {
  const auto contradiction = scan.contradictions.find(candidate->entry.provenance.series);
  if (contradiction != scan.contradictions.end()) return contradiction->second;
  INTRAWARP_RETURN_IF_ERROR(FailureIn(scan.instances, scan.instances[candidate->stack.frames[0].instance]));
  INTRAWARP_RETURN_IF_ERROR(dicom::DropRepeats(scan.instances, options, &candidate->stack, &candidate->entry.notes));
  INTRAWARP_ASSIGN_OR_RETURN(candidate->grid, dicom::GridOf(scan.instances, candidate->stack, options.resample));
  for (const std::string& note : candidate->grid.notes) AddUnique(note, &candidate->entry.notes);
  candidate->entry.geometry = candidate->grid.geometry;
  return dicom::VoxelTypeOf(scan.instances, candidate->stack, candidate->grid, options.limits.max_volume_bytes)
      .status();
}

Candidate FromStack(const Scan& scan, Stack stack, const DicomOptions& options) {
  Candidate candidate;
  DicomEntry& entry = candidate.entry;
  entry.provenance = scan.instances[stack.frames[0].instance].provenance;
  entry.frames = static_cast<int64_t>(stack.frames.size());
  std::vector<size_t> files;
  for (const dicom::FrameIndex i : stack.frames) files.push_back(i.instance);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  entry.files = static_cast<int64_t>(files.size());
  for (const size_t i : files) {
    for (const std::string& note : scan.instances[i].notes) AddUnique(note, &entry.notes);
  }
  const dicom::FrameIndex first = stack.frames[0];
  const int segment = scan.instances[first.instance].frames[first.frame].segment;
  if (segment > 0) entry.notes.push_back(absl::StrCat("segment ", segment));
  CountImages(scan, scan.instances[first.instance], &entry);
  entry.instance = scan.instances[first.instance].sop_instance;
  entry.uids = scan.instances[first.instance].uids;
  candidate.stack = std::move(stack);
  entry.status = Plan(scan, options, &candidate);
  return candidate;
}

// Images that cannot be used, by series and cause. Those of a series that has a volume are told by that volume's
// status.
std::vector<Candidate> Failures(const Scan& scan) {
  std::map<std::pair<std::string, std::string>, Candidate> failures;
  for (const Instance& instance : scan.instances) {
    if (instance.status.ok()) continue;
    const bool told = std::any_of(scan.candidates.begin(), scan.candidates.end(), [&](const Candidate& c) {
      return !IsColour(instance) && c.entry.provenance.series == instance.provenance.series;
    });
    if (told) continue;
    Candidate& candidate = failures[{instance.provenance.series, instance.status.ToString()}];
    candidate.entry.provenance = instance.provenance;
    candidate.entry.status = instance.status;
    candidate.entry.is_colour = IsColour(instance);
    candidate.entry.instance = instance.sop_instance;
    candidate.entry.uids = instance.uids;
    ++candidate.entry.files;
  }
  std::vector<Candidate> result;
  for (auto& [key, candidate] : failures) result.push_back(std::move(candidate));
  return result;
}

absl::StatusOr<Scan> ScanPathUnguarded(const std::string& path, const DicomOptions& options) {
  Scan scan;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> files, dicom::FilesBelow(path, options.limits));
    INTRAWARP_RETURN_IF_ERROR(DescribeFiles(files, options.limits, &scan));
  } else {
    INTRAWARP_RETURN_IF_ERROR(DescribeFile(path, options.limits, &scan));
  }
  scan.contradictions = dicom::Contradictions(scan.instances);
  INTRAWARP_ASSIGN_OR_RETURN(std::vector<Stack> stacks, dicom::MakeStacks(scan.instances, options.limits.max_volumes));
  for (Stack& stack : stacks) scan.candidates.push_back(FromStack(scan, std::move(stack), options));
  for (Candidate& failure : Failures(scan)) scan.candidates.push_back(std::move(failure));
  if (scan.counts.broken > 0) {
    for (Candidate& c : scan.candidates) {
      c.entry.notes.push_back(absl::StrCat(scan.counts.broken, " broken files do not say which series they are of"));
    }
  }
  return scan;
}

absl::StatusOr<Scan> ScanPath(const std::string& path, const DicomOptions& options) {
  return GuardMemory([&] { return ScanPathUnguarded(path, options); });
}

// ---- The choice -----------------------------------------------------------------------------------------------------

std::string Choices(const std::vector<Candidate>& candidates, const std::vector<size_t>& which) {
  std::vector<std::string> told;
  for (size_t i = 0; i < which.size() && i < kChoicesTold; ++i) {
    told.push_back(DescribeDicomEntry(candidates[which[i]].entry, static_cast<int64_t>(which[i]) + 1));
  }
  if (which.size() > kChoicesTold) told.push_back("...");
  return absl::StrJoin(told, "; ");
}

// A series is one patient's. Where it is not, no choice by its name is one.
absl::Status CheckSubjects(const std::vector<Candidate>& candidates, const std::vector<size_t>& which) {
  std::map<std::string, std::string> subjects;  // by series
  for (const size_t i : which) {
    const DicomProvenance& from = candidates[i].entry.provenance;
    if (subjects.try_emplace(from.series, from.subject).first->second == from.subject) continue;
    return FieldError(
        absl::StatusCode::kInvalidArgument, "patient",
        absl::StrCat("the files of the series are of several patients or studies; choose a volume by its ",
                     "index: ", Choices(candidates, which)));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> ChooseOnly(const Scan& scan) {
  if (scan.candidates.size() == 1) return 0;
  if (scan.candidates.empty()) {
    if (scan.counts.not_images == 0) {
      return FieldError(absl::StatusCode::kNotFound, "file",
                        "there is no DICOM: the folder is empty, or holds files of other kinds");
    }
    return FieldError(absl::StatusCode::kInvalidArgument, "file", "holds no image");
  }
  std::vector<size_t> all(scan.candidates.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  INTRAWARP_RETURN_IF_ERROR(CheckSubjects(scan.candidates, all));
  return FieldError(absl::StatusCode::kInvalidArgument, "series",
                    absl::StrCat("there are ", all.size(), " volumes; choose one by its index ",
                                 "or series: ", Choices(scan.candidates, all)));
}

absl::StatusOr<size_t> Choose(const Scan& scan, const std::string& series) {
  if (series.empty()) return ChooseOnly(scan);
  int64_t index = 0;
  if (series.size() < kLeastHash && absl::SimpleAtoi(series, &index)) {
    if (index >= 1 && index <= static_cast<int64_t>(scan.candidates.size())) return static_cast<size_t>(index - 1);
    return FieldError(absl::StatusCode::kNotFound, "series",
                      absl::StrCat("there are ", scan.candidates.size(), " volumes"));
  }
  const bool is_hash = series.size() >= kLeastHash && std::all_of(series.begin(), series.end(), [](char c) {
                         return absl::ascii_isxdigit(static_cast<unsigned char>(c));
                       });
  if (!is_hash) {
    return FieldError(absl::StatusCode::kInvalidArgument, "series",
                      "must be an index, or the first eight digits of a hash or more");
  }
  std::vector<size_t> found;
  for (size_t i = 0; i < scan.candidates.size(); ++i) {
    if (absl::StartsWith(scan.candidates[i].entry.provenance.series, absl::AsciiStrToLower(series))) found.push_back(i);
  }
  if (found.size() == 1) return found[0];
  if (found.empty()) return FieldError(absl::StatusCode::kNotFound, "series", "no volume is of it");
  INTRAWARP_RETURN_IF_ERROR(CheckSubjects(scan.candidates, found));
  return FieldError(
      absl::StatusCode::kInvalidArgument, "series",
      absl::StrCat(found.size(), " volumes are of it; choose one by its ", "index: ", Choices(scan.candidates, found)));
}

absl::StatusOr<DicomVolume> ReadCandidate(const Scan& scan, size_t index, const DicomOptions& options) {
  const Candidate& candidate = scan.candidates[index];
  INTRAWARP_RETURN_IF_ERROR(candidate.entry.status);
  DicomVolume result;
  result.provenance = candidate.entry.provenance;
  result.notes = candidate.entry.notes;
  INTRAWARP_ASSIGN_OR_RETURN(result.volume, GuardMemory([&] {
                               return dicom::MakeVolume(scan.instances, candidate.stack, candidate.grid, options,
                                                        &result.notes);
                             }));
  return result;
}

}  // namespace

absl::StatusOr<DicomListing> ListDicom(const std::string& path, const DicomOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(Scan scan, ScanPath(path, options));
  DicomListing listing = scan.counts;
  for (Candidate& candidate : scan.candidates) listing.volumes.push_back(std::move(candidate.entry));
  return listing;
}

absl::StatusOr<dicom::Selection> dicom::SelectVolume(const std::string& path, const DicomOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(Scan scan, ScanPath(path, options));
  INTRAWARP_ASSIGN_OR_RETURN(const size_t chosen, Choose(scan, options.series));
  Candidate& candidate = scan.candidates[chosen];
  INTRAWARP_RETURN_IF_ERROR(candidate.entry.status);
  return Selection{std::move(candidate.entry), std::move(scan.instances), std::move(candidate.stack),
                   std::move(candidate.grid)};
}

absl::StatusOr<DicomVolume> ReadDicom(const std::string& path, const DicomOptions& options) {
  INTRAWARP_ASSIGN_OR_RETURN(Scan scan, ScanPath(path, options));
  INTRAWARP_ASSIGN_OR_RETURN(const size_t chosen, Choose(scan, options.series));
  return ReadCandidate(scan, chosen, options);
}

absl::Status ReadEachDicom(const std::string& path, const DicomOptions& options,
                           const std::function<void(const DicomEntry& entry,
                                                    const std::function<absl::StatusOr<DicomVolume>()>& read)>& take) {
  INTRAWARP_ASSIGN_OR_RETURN(Scan scan, ScanPath(path, options));
  for (size_t i = 0; i < scan.candidates.size(); ++i) {
    take(scan.candidates[i].entry, [&] { return ReadCandidate(scan, i, options); });
  }
  return absl::OkStatus();
}

absl::Status CheckWholeFile(const std::string& path, const DicomLimits& limits) {
  INTRAWARP_ASSIGN_OR_RETURN(dicom::Dataset dataset, dicom::ReadDataset(path, limits));
  if (dataset.data == nullptr) return dataset.status;
  const Instance instance = Describe(dataset, path, limits);
  for (const absl::Status& status : {dataset.status, instance.status}) {
    if (absl::IsDataLoss(status)) return status;
  }
  // A file that ends between two elements.
  const bool is_cut = dataset.status.ok() && !instance.has_image && !instance.is_directory &&
                      dataset.data->tagExists(DCM_Rows) && dataset.data->tagExists(DCM_Columns);
  return is_cut ? FieldError(absl::StatusCode::kDataLoss, "data", "there are no pixels") : absl::OkStatus();
}

std::string SeriesHash(absl::string_view uid) { return dicom::HashOfSeries(uid); }

bool IsModality(absl::string_view term) { return dicom::IsModality(term); }

bool LooksLikeDicom(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return true;
  return dicom::BeginsLikeDicom(path);
}

std::string DescribeDicomEntry(const DicomEntry& entry, int64_t index) {
  std::string text = absl::StrCat(index, ": ", entry.provenance.modality.empty() ? "image" : entry.provenance.modality);
  if (entry.status.ok()) {
    const Vec3d& s = entry.geometry.spacing;
    absl::StrAppendFormat(&text, " %s, %.4gx%.4gx%.4g mm", SizeString(entry.geometry), s.x, s.y, s.z);
  } else {
    absl::StrAppendFormat(&text, " of %d files, not readable", entry.files);
  }
  if (!entry.provenance.series.empty()) {
    absl::StrAppend(&text, ", series ", entry.provenance.series.substr(0, kShortHash));
  }
  return text;
}

}  // namespace intrawarp::io
