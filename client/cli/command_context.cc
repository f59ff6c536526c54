// SPDX-License-Identifier: Apache-2.0
#include "client/cli/command_context.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <optional>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/dicom_files.h"
#include "client/cli/files.h"
#include "client/cli/matrix_files.h"
#include "client/cli/report_json.h"
#include "client/cpp/rpc_status.h"
#include "client/cpp/uuid.h"
#include "engine/base/status_macros.h"
#include "io/dicom/registration_object.h"
#include "io/format/grid_files.h"
#include "io/format/itk_transform.h"
#include "io/format/matrix_text.h"

namespace intrawarp::cli {
namespace {

// Cleaning up is not cancelled by Ctrl-C, so it must end by itself.
constexpr std::chrono::milliseconds kDeleteTimeout(10000);

// The bounds of Retrying.
constexpr int kMaxRetries = 6;
constexpr std::chrono::milliseconds kMaxRetryTime(60000);

}  // namespace

bool IsVolumeName(const std::string& x) { return absl::StartsWith(x, "volumes/"); }
bool IsTransformName(const std::string& x) { return absl::StartsWith(x, "transforms/"); }

absl::Status Annotate(const absl::Status& status, const std::string& subject) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(subject, ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { annotated.SetPayload(type, payload); });
  return annotated;
}

absl::Status CommandContext::CheckInterrupt() const {
  return interrupt_->cancelled() ? absl::CancelledError("interrupted") : absl::OkStatus();
}

absl::Status CommandContext::Use(const std::string& address) {
  INTRAWARP_ASSIGN_OR_RETURN(client_, servers_->At(address));
  address_ = address;
  return absl::OkStatus();
}

absl::Status CommandContext::Retrying(const std::function<absl::Status()>& work) const {
  std::chrono::milliseconds waited{0};
  for (int retries = 0;; ++retries) {
    absl::Status status = work();
    const bool may_pass = absl::IsUnavailable(status) || absl::IsAborted(status);
    const std::optional<std::chrono::milliseconds> delay = client::RetryDelayOf(status);
    if (!may_pass || !delay || retries == kMaxRetries || servers_->has_several()) return status;
    waited += *delay;
    if (waited > kMaxRetryTime) return status;
    std::fprintf(stderr, "intrawarp: %s; trying again (%d of %d)\n", ErrorText(status).c_str(), retries + 1,
                 kMaxRetries);
    if (interrupt_->WaitFor(*delay)) return absl::CancelledError("interrupted");
  }
}

void CommandContext::TellOrientation(const std::string& path, const io::HostVolume& volume) {
  if (volume.has_orientation || !told_.insert(path).second) return;
  std::fprintf(stderr,
               "intrawarp: %s: the file states no orientation; its axes are taken as left, back, head "
               "(--assume_orientation=LPS or RAS settles it)\n",
               path.c_str());
}

void CommandContext::PrintJson(const nlohmann::ordered_json& json) {
  if (collects_json_) {
    json_[address_] = json;
  } else {
    std::fputs(JsonText(json).c_str(), stdout);
  }
}

void CommandContext::EndJson() {
  collects_json_ = false;
  PrintJson(json_);
}

absl::StatusOr<std::shared_ptr<const LoadedVolume>> CommandContext::Load(const std::string& path,
                                                                         const VolumeFileOptions& options) {
  const bool is_loaded = loaded_ != nullptr && loaded_path_ == path;
  if (is_loaded) return loaded_;
  VolumeFileOptions with_orientation = options;
  with_orientation.orientation = orientation_;
  INTRAWARP_ASSIGN_OR_RETURN(LoadedVolume volume, LoadVolume(path, with_orientation));
  TellOrientation(path, volume.volume);
  auto loaded = std::make_shared<const LoadedVolume>(std::move(volume));
  if (servers_->has_several()) {
    loaded_path_ = path;
    loaded_ = loaded;
  }
  return loaded;
}

absl::StatusOr<v1::UploadResponse> CommandContext::Upload(const LoadedVolume& loaded, const std::string& path,
                                                          const std::string& id, bool pinned) {
  INTRAWARP_RETURN_IF_ERROR(CheckInterrupt());
  const io::HostVolume& volume = loaded.volume;
  client::VolumeUpload upload;
  upload.id = id;
  upload.provenance = loaded.provenance;
  upload.pinned = pinned;
  upload.geometry = volume.geometry;
  upload.pixel_type = volume.pixel_type;
  upload.bytes = absl::string_view(reinterpret_cast<const char*>(volume.pixels.data()), volume.pixels.size());
  upload.rescale_slope = volume.rescale_slope;
  upload.rescale_intercept = volume.rescale_intercept;
  ProgressLine progress;
  upload.on_progress = [&](int64_t sent, int64_t total) {
    progress.Show(absl::StrFormat("%s: uploaded %d of %d MiB", path, sent >> 20, total >> 20));
  };
  absl::StatusOr<v1::UploadResponse> response = client().UploadVolume(upload, call());
  if (!response.ok()) return Annotate(response.status(), path);
  return response;
}

absl::StatusOr<v1::UploadResponse> CommandContext::UploadMatrix(const client::SparseMatrix& matrix,
                                                                const std::string& path, const std::string& id) {
  INTRAWARP_RETURN_IF_ERROR(CheckInterrupt());
  client::SparseMatrixUpload upload;
  upload.id = id;
  upload.matrix = &matrix;
  ProgressLine progress;
  upload.on_progress = [&](int64_t sent, int64_t total) {
    progress.Show(absl::StrFormat("%s: uploaded %d of %d MiB", path, sent >> 20, total >> 20));
  };
  absl::StatusOr<v1::UploadResponse> response = client().UploadSparseMatrix(upload, call());
  if (!response.ok()) return Annotate(response.status(), path);
  return response;
}

absl::StatusOr<v1::UploadResponse> CommandContext::UploadMatrixValues(const client::SparseMatrix& matrix,
                                                                      const std::string& pattern,
                                                                      const std::string& path, const std::string& id) {
  client::SparseMatrix resident;
  INTRAWARP_RETURN_IF_ERROR(client().DownloadSparseMatrix(pattern, &resident, call()).status());
  if (!HaveSamePattern(matrix, resident)) {
    const std::string shown = ShownMatrixNames(pattern);
    return Annotate(
        absl::InvalidArgumentError(absl::StrCat("its entries are not at the places of the entries of ", shown)), path);
  }
  INTRAWARP_RETURN_IF_ERROR(CheckInterrupt());
  client::SparseMatrixValuesUpload upload;
  upload.id = id;
  upload.pattern = pattern;
  std::visit([&upload](const auto& csr) { upload.values = absl::MakeConstSpan(csr.values); }, matrix);
  absl::StatusOr<v1::UploadResponse> response = client().UploadSparseMatrixValues(upload, call());
  if (!response.ok()) return Annotate(response.status(), path);
  return response;
}

absl::StatusOr<std::string> Temporaries::Volume(const std::string& x) {
  if (IsVolumeName(x)) return x;
  const auto known = volumes_.find(x);
  if (known != volumes_.end() && !unsure_.contains(x)) return known->second;
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<const LoadedVolume> volume, context_.Load(x));
  // An upload whose answer got lost is tried again under its name.
  if (known == volumes_.end()) {
    INTRAWARP_ASSIGN_OR_RETURN(const std::string id, client::RandomUuid());
    volumes_[x] = "volumes/" + id;
  }
  const std::string name = volumes_[x];
  unsure_.insert(x);
  const absl::Status uploaded = context_.Upload(*volume, x, name.substr(name.find('/') + 1)).status();
  if (!uploaded.ok() && !absl::IsAlreadyExists(uploaded)) return uploaded;
  unsure_.erase(x);
  return name;
}

absl::StatusOr<std::string> Temporaries::Transform(const std::string& t) {
  if (IsTransformName(t)) return t;
  const auto known = transforms_.find(t);
  if (known != transforms_.end()) return known->second;
  const bool itk = HasItkSuffix(t) || (HasMatrixSuffix(t) && io::HoldsItkText(t));
  const absl::StatusOr<std::string> name = IsDicomTransform(t)  ? UploadRegistrationFile(t)
                                           : itk                ? UploadItkFile(t)
                                           : HasMatrixSuffix(t) ? UploadMatrixFile(t)
                                                                : UploadFieldFile(t);
  if (!name.ok()) return Annotate(name.status(), t);
  return name;
}

absl::StatusOr<std::string> Temporaries::UploadMatrixFile(const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap matrix, io::ReadMatrix(path));
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, client::RandomUuid());
  transforms_[path] = "transforms/" + id;
  INTRAWARP_RETURN_IF_ERROR(client_.UploadAffine(id, matrix, context_.call()).status());
  return transforms_[path];
}

absl::StatusOr<std::string> Temporaries::UploadItkFile(const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(const io::ItkTransform file, io::ReadItkTransform(path));
  return UploadComposed(path, file);
}

absl::StatusOr<std::string> Temporaries::UploadRegistrationFile(const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(const io::ItkTransform file, io::ReadDicomRegistration(path));
  return UploadComposed(path, file);
}

// A displacement field travels with its affine map in it, since the server stores no such pair.
absl::StatusOr<std::string> Temporaries::UploadComposed(const std::string& path, const io::ItkTransform& file) {
  INTRAWARP_RETURN_IF_ERROR(context_.CheckInterrupt());
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, client::RandomUuid());
  transforms_[path] = "transforms/" + id;
  switch (file.kind) {
    case io::ItkTransform::Kind::kAffine:
      INTRAWARP_RETURN_IF_ERROR(client_.UploadAffine(id, file.affine, context_.call()).status());
      break;
    case io::ItkTransform::Kind::kControlGrid: {
      const client::ControlGridUpload upload{file.affine, file.grid, std::nullopt, file.vectors};
      INTRAWARP_RETURN_IF_ERROR(client_.UploadControlGrid(id, upload, context_.call()).status());
      break;
    }
    case io::ItkTransform::Kind::kDisplacement: {
      const std::vector<float> field = io::WholeDisplacement(file);
      INTRAWARP_RETURN_IF_ERROR(client_.UploadField(id, file.grid, field, context_.call()).status());
      break;
    }
  }
  return transforms_[path];
}

absl::StatusOr<std::string> Temporaries::UploadVelocityFile(const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(const io::HostVelocity file, io::ReadVelocity(path));
  INTRAWARP_RETURN_IF_ERROR(context_.CheckInterrupt());
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, client::RandomUuid());
  transforms_[path] = "transforms/" + id;
  const client::VelocityUpload upload{file.affine, file.geometry, file.velocity};
  INTRAWARP_RETURN_IF_ERROR(client_.UploadVelocity(id, upload, context_.call()).status());
  return transforms_[path];
}

absl::StatusOr<std::string> Temporaries::UploadFieldFile(const std::string& path) {
  if (io::GridFormatOf(path) == io::GridFormat::kNifti) {
    INTRAWARP_ASSIGN_OR_RETURN(const bool holds_velocity, io::HoldsVelocity(path));
    if (holds_velocity) return UploadVelocityFile(path);
  }
  INTRAWARP_ASSIGN_OR_RETURN(const io::HostField field, io::ReadFieldFile(path));
  INTRAWARP_RETURN_IF_ERROR(context_.CheckInterrupt());
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, client::RandomUuid());
  transforms_[path] = "transforms/" + id;
  INTRAWARP_RETURN_IF_ERROR(client_.UploadField(id, field.geometry, field.displacement, context_.call()).status());
  return transforms_[path];
}

absl::StatusOr<std::string> Temporaries::Matrix(const std::string& x, ValueType type) {
  if (IsMatrixName(x)) return WireMatrixName(x);
  const auto known = matrices_.find(x);
  if (known != matrices_.end()) return known->second;
  INTRAWARP_ASSIGN_OR_RETURN(const client::SparseMatrix matrix, LoadMatrix(x, type));
  INTRAWARP_ASSIGN_OR_RETURN(const std::string id, client::RandomUuid());
  const std::string name = matrices_[x] = "sparseMatrices/" + id;
  INTRAWARP_RETURN_IF_ERROR(context_.UploadMatrix(matrix, x, id).status());
  return name;
}

void Temporaries::DropVolume(const std::string& path) {
  const auto known = volumes_.find(path);
  if (known == volumes_.end()) return;
  client::CallOptions options = context_.call();
  options.timeout = kDeleteTimeout;
  const absl::Status status = client_.DeleteVolume(known->second, options);
  if (!status.ok() && !absl::IsNotFound(status)) return;
  volumes_.erase(known);
  unsure_.erase(path);
}

absl::Status Temporaries::DeleteAll() {
  absl::Status first;
  bool answers = true;
  client::CallOptions options = context_.call();
  options.timeout = kDeleteTimeout;
  options.cancellation = nullptr;  // Ctrl-C has cancelled the others
  const auto each = [&](std::map<std::string, std::string>& names, auto remove) {
    for (const auto& [path, name] : names) {
      if (!answers) break;
      const absl::Status status = (client_.*remove)(name, options);
      if (first.ok() && !status.ok() && !absl::IsNotFound(status)) first = status;
      answers = !absl::IsDeadlineExceeded(status);
    }
    names.clear();
  };
  each(volumes_, &client::Client::DeleteVolume);
  each(transforms_, &client::Client::DeleteTransform);
  each(matrices_, &client::Client::DeleteSparseMatrix);
  return first;
}

std::string OwnerColumn(const std::string& owner) { return owner.empty() ? "" : "\t" + owner; }

ProgressLine::ProgressLine() : terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressLine::Show(const std::string& text) {
  if (!terminal_) return;
  std::fprintf(stderr, "\r\033[K%s", text.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::Clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace intrawarp::cli
