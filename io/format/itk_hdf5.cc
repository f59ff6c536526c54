// SPDX-License-Identifier: Apache-2.0
// ITK's HDF5 transform files: a group /TransformGroup with groups 0, 1, ..., each with the data sets TransformType,
// TransformParameters and TransformFixedParameters; ITK writes the last two also as "Tranform...".
//
// The HDF5 library reads an image of the file in memory, so that it opens no other file. What a file may hold is
// checked before a data set is read: hard links, one dimension, no external or virtual storage, known filters, chunks
// and sizes that the file can fill.
#include <hdf5.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"
#include "io/format/itk_parts.h"

namespace intrawarp::io {
namespace {

constexpr const char* kGroup = "TransformGroup";
constexpr const char* kType = "TransformType";
constexpr const char* kParameters = "TransformParameters";
constexpr const char* kFixed = "TransformFixedParameters";
constexpr const char* kParametersMisspelled = "TranformParameters";
constexpr const char* kFixedMisspelled = "TranformFixedParameters";
constexpr size_t kMaxTypeLength = 256;
constexpr hsize_t kMaxChunkBytes = hsize_t{256} << 20;
// Deflate packs at most 1032 bytes into one (zlib's technical details).
constexpr hsize_t kMostPacked = 1040;
constexpr size_t kImageStep = size_t{1} << 20;

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, what);
}
absl::Status Unimplemented(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kUnimplemented, field, what);
}
absl::Status Lost(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kDataLoss, field, what);
}

// An identifier of the library that closes itself.
class Handle {
 public:
  explicit Handle(hid_t id = H5I_INVALID_HID) : id_(id) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) H5Idec_ref(id_);
  }
  hid_t get() const { return id_; }
  bool ok() const { return id_ >= 0; }

 private:
  hid_t id_;
};

// One user of the library at a time, which prints no errors and loads no plugins meanwhile.
class Library {
 public:
  Library() : lock_(Mutex()) {
    H5Eget_auto2(H5E_DEFAULT, &print_, &print_data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    H5PLset_loading_state(0);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() { H5Eset_auto2(H5E_DEFAULT, print_, print_data_); }

 private:
  static std::mutex& Mutex() {
    static std::mutex* const mutex = [] {
      // At exit the library would complain about the objects of broken files, which it cannot close.
      H5dont_atexit();
      return new std::mutex;
    }();
    return *mutex;
  }
  std::lock_guard<std::mutex> lock_;
  H5E_auto2_t print_ = nullptr;
  void* print_data_ = nullptr;
};

Handle InMemory() {
  Handle access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_fapl_core(access.get(), kImageStep, /*backing_store=*/0);
  return access;
}

// ---- In -------------------------------------------------------------------------------------------------------------

bool HasLink(hid_t group, const char* name) { return H5Lexists(group, name, H5P_DEFAULT) > 0; }

// A link may lead to another file or around in circles, unless it is a hard one.
absl::Status CheckHardLink(hid_t group, const char* name, absl::string_view field) {
  H5L_info_t info;
  if (!HasLink(group, name)) return Invalid(field, "is missing");
  if (H5Lget_info(group, name, &info, H5P_DEFAULT) < 0) return Lost("file", absl::StrCat(field, " cannot be read"));
  return info.type == H5L_TYPE_HARD ? absl::OkStatus() : Unimplemented(field, "is a link");
}

absl::StatusOr<Handle> OpenGroup(hid_t parent, const char* name, absl::string_view field) {
  INTRAWARP_RETURN_IF_ERROR(CheckHardLink(parent, name, field));
  Handle group(H5Gopen2(parent, name, H5P_DEFAULT));
  if (!group.ok()) return Invalid(field, "is not a group");
  return group;
}

// The layout and the filters are ones that read from this file alone, and no more than it can fill.
absl::Status CheckStorage(hid_t set, hsize_t count, hsize_t number_bytes, absl::string_view field) {
  const Handle plan(H5Dget_create_plist(set));
  const H5D_layout_t layout = H5Pget_layout(plan.get());
  const hsize_t bytes = count * number_bytes;
  // The size that a header claims is no more than the file's.
  hsize_t file_bytes = 0;
  const Handle file(H5Iget_file_id(set));
  if (!file.ok() || H5Fget_filesize(file.get(), &file_bytes) < 0) return Lost("file", "has no size");
  const hsize_t stored = std::min(H5Dget_storage_size(set), file_bytes);
  if (layout == H5D_COMPACT || layout == H5D_CONTIGUOUS) {
    if (H5Pget_external_count(plan.get()) != 0) return Unimplemented(field, "lies in other files");
    return stored >= bytes ? absl::OkStatus() : Lost("file", absl::StrCat(field, " is cut short"));
  }
  hsize_t chunk = 0;
  if (layout != H5D_CHUNKED || H5Pget_chunk(plan.get(), 1, &chunk) != 1) {
    return Unimplemented(field, "is neither contiguous nor chunked");
  }
  if (chunk > kMaxChunkBytes / number_bytes) return Unimplemented(field, "has chunks above 256 MiB");
  const int filters = H5Pget_nfilters(plan.get());
  int deflations = 0;
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, config = 0;
    size_t values = 0;
    const H5Z_filter_t filter = H5Pget_filter2(plan.get(), i, &flags, &values, nullptr, 0, nullptr, &config);
    if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32) {
      return Unimplemented(field, "has a filter that is not supported");
    }
    // Each one multiplies how much a byte can become.
    if (filter == H5Z_FILTER_DEFLATE && ++deflations > 1) {
      return Unimplemented(field, "is deflated more than once");
    }
  }
  return stored >= bytes / kMostPacked ? absl::OkStatus() : Lost("file", absl::StrCat(field, " is cut short"));
}

// A data set of numbers in one dimension.
struct NumberSet {
  Handle set;
  hsize_t count = 0;
  hsize_t number_bytes = 0;
};

absl::StatusOr<NumberSet> OpenNumbers(hid_t group, const char* name, absl::string_view field) {
  INTRAWARP_RETURN_IF_ERROR(CheckHardLink(group, name, field));
  NumberSet numbers;
  numbers.set = Handle(H5Dopen2(group, name, H5P_DEFAULT));
  if (!numbers.set.ok()) return Invalid(field, "is not a data set");
  const Handle type(H5Dget_type(numbers.set.get())), space(H5Dget_space(numbers.set.get()));
  if (H5Tget_class(type.get()) != H5T_FLOAT || H5Tget_size(type.get()) > sizeof(double)) {
    return Unimplemented(field, "must be float32 or float64");
  }
  numbers.number_bytes = H5Tget_size(type.get());
  const H5S_class_t shape = H5Sget_simple_extent_type(space.get());
  if (shape == H5S_NULL) return numbers;
  if (shape != H5S_SIMPLE || H5Sget_simple_extent_ndims(space.get()) != 1) {
    return Invalid(field, "must have one dimension");
  }
  H5Sget_simple_extent_dims(space.get(), &numbers.count, nullptr);
  return numbers;
}

absl::StatusOr<std::vector<double>> ReadNumbers(hid_t group, const char* name, int64_t wanted,
                                                absl::string_view field) {
  // A transform without parameters may be written without a data set.
  if (wanted == 0 && !HasLink(group, name)) return std::vector<double>();
  INTRAWARP_ASSIGN_OR_RETURN(const NumberSet numbers, OpenNumbers(group, name, field));
  if (numbers.count != static_cast<hsize_t>(wanted)) {
    return Invalid(field, absl::StrCat("has ", numbers.count, " numbers, must have ", wanted));
  }
  if (wanted == 0) return std::vector<double>();
  INTRAWARP_RETURN_IF_ERROR(CheckStorage(numbers.set.get(), numbers.count, numbers.number_bytes, field));
  std::vector<double> values(numbers.count);
  if (H5Dread(numbers.set.get(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
    return Lost("file", absl::StrCat(field, " cannot be read"));
  }
  if (std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); })) return values;
  return Invalid(field, "a number is not finite");
}

absl::StatusOr<std::string> ReadVariableString(hid_t set, hid_t type) {
  char* text = nullptr;
  if (H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, &text) < 0 || text == nullptr) {
    return Lost("file", "TransformType cannot be read");
  }
  const std::string out(text, strnlen(text, kMaxTypeLength + 1));
  H5free_memory(text);
  return out;
}

absl::StatusOr<std::string> ReadFixedString(hid_t set, hid_t type) {
  const size_t size = H5Tget_size(type);
  if (size > kMaxTypeLength) return Invalid("TransformType", "is too long");
  std::string text(size, '\0');
  if (H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()) < 0) {
    return Lost("file", "TransformType cannot be read");
  }
  return text.substr(0, strnlen(text.data(), size));
}

absl::StatusOr<std::string> ReadType(hid_t group) {
  INTRAWARP_RETURN_IF_ERROR(CheckHardLink(group, kType, kType));
  const Handle set(H5Dopen2(group, kType, H5P_DEFAULT));
  if (!set.ok()) return Invalid("TransformType", "is not a data set");
  const Handle type(H5Dget_type(set.get())), space(H5Dget_space(set.get())), plan(H5Dget_create_plist(set.get()));
  const H5D_layout_t layout = H5Pget_layout(plan.get());
  const bool here = (layout == H5D_COMPACT || layout == H5D_CONTIGUOUS) && H5Pget_external_count(plan.get()) == 0;
  if (H5Tget_class(type.get()) != H5T_STRING || H5Sget_simple_extent_npoints(space.get()) != 1 || !here) {
    return Invalid("TransformType", "must be one string");
  }
  absl::StatusOr<std::string> text = H5Tis_variable_str(type.get()) > 0 ? ReadVariableString(set.get(), type.get())
                                                                        : ReadFixedString(set.get(), type.get());
  if (text.ok() && text->size() > kMaxTypeLength) return Invalid("TransformType", "is too long");
  return text;
}

int64_t CountOf(hid_t group, const char* name) {
  const absl::StatusOr<NumberSet> numbers = OpenNumbers(group, name, "FixedParameters");
  return numbers.ok() ? static_cast<int64_t>(std::min<hsize_t>(numbers->count, 1024)) : 0;
}

absl::StatusOr<ItkPart> ReadPart(const Handle& transforms, size_t index) {
  INTRAWARP_ASSIGN_OR_RETURN(Handle opened, OpenGroup(transforms.get(), absl::StrCat(index).c_str(), "TransformGroup"));
  const auto group = std::make_shared<Handle>(std::move(opened));
  ItkPart part;
  INTRAWARP_ASSIGN_OR_RETURN(part.type, ReadType(group->get()));
  const char* parameters = HasLink(group->get(), kParametersMisspelled) ? kParametersMisspelled : kParameters;
  const char* fixed = HasLink(group->get(), kFixedMisspelled) ? kFixedMisspelled : kFixed;
  part.parameters = [group, parameters](int64_t count) {
    return ReadNumbers(group->get(), parameters, count, "Parameters");
  };
  part.fixed_parameters = [group, fixed](int64_t count) {
    return ReadNumbers(group->get(), fixed, count, "FixedParameters");
  };
  if (HasLink(group->get(), fixed)) part.fixed_count = CountOf(group->get(), fixed);
  return part;
}

absl::StatusOr<ItkTransform> ReadImage(const std::string& image) {
  const Handle access = InMemory();
  // The library copies the image, and does not write to it.
  if (H5Pset_file_image(access.get(), const_cast<char*>(image.data()), image.size()) < 0) {
    return FieldError(absl::StatusCode::kResourceExhausted, "file", "no memory to read it");
  }
  const Handle file(H5Fopen("transform", H5F_ACC_RDONLY, access.get()));
  if (!file.ok()) return Lost("file", "is not an HDF5 file, or broken");
  INTRAWARP_ASSIGN_OR_RETURN(const Handle group, OpenGroup(file.get(), kGroup, kGroup));
  H5G_info_t info;
  if (H5Gget_info(group.get(), &info) < 0) return Lost("file", "TransformGroup cannot be read");
  if (info.nlinks > kMaxItkParts) return Unimplemented("Transform", absl::StrCat("a list of more than ", kMaxItkParts));
  std::vector<ItkPart> parts;
  for (size_t i = 0; i < info.nlinks; ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(parts.emplace_back(), ReadPart(group, i));
  }
  return ComposeItkParts(std::move(parts));
}

// ---- Out ------------------------------------------------------------------------------------------------------------

// A data set that holds no time, so that equal input gives equal bytes.
Handle CreateSet(hid_t group, const char* name, hid_t type, hid_t space) {
  const Handle plan(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_obj_track_times(plan.get(), false);
  return Handle(H5Dcreate2(group, name, type, space, H5P_DEFAULT, plan.get(), H5P_DEFAULT));
}

bool WriteString(hid_t group, const char* name, const std::string& text) {
  const Handle type(H5Tcopy(H5T_C_S1)), space(H5Screate_simple(1, std::vector<hsize_t>{1}.data(), nullptr));
  H5Tset_size(type.get(), H5T_VARIABLE);
  const Handle set = CreateSet(group, name, type.get(), space.get());
  const char* pointer = text.c_str();
  return set.ok() && H5Dwrite(set.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, &pointer) >= 0;
}

bool WriteNumbers(hid_t group, const char* name, hid_t memory_type, const void* numbers, hsize_t count) {
  const Handle space(H5Screate_simple(1, &count, nullptr));
  const Handle set = CreateSet(group, name, H5T_IEEE_F64LE, space.get());
  if (!set.ok()) return false;
  return count == 0 || H5Dwrite(set.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers) >= 0;
}

bool WritePart(hid_t transforms, size_t index, const ItkPartOut& part) {
  const Handle group(H5Gcreate2(transforms, absl::StrCat(index).c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  if (!group.ok() || !WriteString(group.get(), kType, part.type)) return false;
  if (absl::StartsWith(part.type, "CompositeTransform_")) return true;
  const bool whole = part.vectors.empty();
  return WriteNumbers(group.get(), kFixed, H5T_NATIVE_DOUBLE, part.fixed_parameters.data(),
                      part.fixed_parameters.size()) &&
         WriteNumbers(group.get(), kParameters, whole ? H5T_NATIVE_DOUBLE : H5T_NATIVE_FLOAT,
                      whole ? static_cast<const void*>(part.parameters.data()) : part.vectors.data(),
                      whole ? part.parameters.size() : part.vectors.size());
}

std::optional<std::vector<uint8_t>> MakeImage(const ItkTransform& transform) {
  const Handle access = InMemory();
  const Handle file(H5Fcreate("transform", H5F_ACC_TRUNC, H5P_DEFAULT, access.get()));
  if (!file.ok() || !WriteString(file.get(), "HDFVersion", H5_VERS_INFO)) return std::nullopt;
  const Handle group(H5Gcreate2(file.get(), kGroup, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  const std::vector<ItkPartOut> parts = ItkPartsOf(transform);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!WritePart(group.get(), i, parts[i])) return std::nullopt;
  }
  if (H5Fflush(file.get(), H5F_SCOPE_LOCAL) < 0) return std::nullopt;
  const ssize_t size = H5Fget_file_image(file.get(), nullptr, 0);
  if (size <= 0) return std::nullopt;
  std::vector<uint8_t> image(static_cast<size_t>(size));
  if (H5Fget_file_image(file.get(), image.data(), image.size()) != size) return std::nullopt;
  return image;
}

}  // namespace

absl::StatusOr<ItkTransform> ReadItkHdf5(const std::string& path, size_t max_bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string image, ReadSmallFile(path, max_bytes));
  if (image.empty()) return Lost("file", "is empty");
  const Library library;
  return ReadImage(image);
}

absl::Status WriteItkHdf5(const std::string& path, const ItkTransform& transform) {
  std::optional<std::vector<uint8_t>> image;
  {
    const Library library;
    image = MakeImage(transform);
  }
  if (!image.has_value()) {
    return FieldError(absl::StatusCode::kResourceExhausted, "file", "the HDF5 library could not make it");
  }
  INTRAWARP_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  INTRAWARP_RETURN_IF_ERROR(file.Write(image->data(), image->size()));
  return file.Commit();
}

}  // namespace intrawarp::io
