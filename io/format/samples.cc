// SPDX-License-Identifier: Apache-2.0
#include "io/format/samples.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/digest.h"

namespace intrawarp::io {
namespace {

constexpr int64_t kStep = int64_t{1} << 20;
constexpr int64_t kFirstAllocation = int64_t{64} << 20;
// Deflate packs at most 1032 bytes into one (zlib's technical details).
constexpr int64_t kMostPacked = 1040;
constexpr size_t kDigestBytes = 8;
constexpr int64_t kMaxOldHeader = int64_t{1} << 16;
constexpr int kFastest = 1;
// zlib's window bits: its own format, gzip's, and either by what the data says.
constexpr int kZlibBits = 15, kGzipBits = 15 + 16, kEitherBits = 15 + 32;

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, what);
}
absl::Status Lost(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kDataLoss, field, what);
}

// An open file that closes itself.
class Input {
 public:
  static absl::StatusOr<Input> Open(const std::string& path) {
    INTRAWARP_ASSIGN_OR_RETURN(const RegularFile file, OpenRegularFile(path));
    return Input(file);
  }
  Input(Input&& other) noexcept : file_(std::exchange(other.file_, RegularFile{})) {}
  Input& operator=(Input&&) = delete;
  ~Input() {
    if (file_.descriptor >= 0) close(file_.descriptor);
  }

  int64_t bytes() const { return file_.bytes; }

  // The number of bytes that came, which is below `size` only at the end of the file.
  absl::StatusOr<int64_t> ReadAt(int64_t offset, void* data, int64_t size) const {
    int64_t done = 0;
    while (done < size) {
      const ssize_t got = pread(file_.descriptor, static_cast<uint8_t*>(data) + done,
                                static_cast<size_t>(std::min(size - done, kStep)), offset + done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return FileError("cannot be read", errno);
      if (got == 0) break;
      done += got;
    }
    return done;
  }

 private:
  explicit Input(RegularFile file) : file_(file) {}
  RegularFile file_;
};

// The unpacked bytes of a deflated run, in order.
class Inflater {
 public:
  Inflater(const Input& input, int64_t offset) : input_(input), offset_(offset), packed_(kStep) {}
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }

  absl::Status Begin() {
    if (inflateInit2(&stream_, kEitherBits) == Z_OK) return absl::OkStatus();
    return FieldError(absl::StatusCode::kResourceExhausted, "data", "no memory to unpack it");
  }

  // Up to `size` bytes; fewer only at the end of the run.
  absl::StatusOr<int64_t> Read(uint8_t* data, int64_t size) {
    int64_t done = 0;
    while (done < size && !finished_) {
      INTRAWARP_RETURN_IF_ERROR(Fill());
      const uInt step = static_cast<uInt>(std::min(size - done, kStep));
      stream_.next_out = data + done;
      stream_.avail_out = step;
      INTRAWARP_RETURN_IF_ERROR(Step());
      done += step - stream_.avail_out;
    }
    return done;
  }

  // OK when nothing follows.
  absl::Status ExpectEnd() {
    uint8_t extra;
    INTRAWARP_ASSIGN_OR_RETURN(const int64_t got, Read(&extra, 1));
    return got == 0 ? absl::OkStatus() : Invalid("data", "there are more bytes than the header says");
  }

 private:
  absl::Status Fill() {
    if (stream_.avail_in > 0) return absl::OkStatus();
    INTRAWARP_ASSIGN_OR_RETURN(const int64_t got, input_.ReadAt(offset_, packed_.data(), kStep));
    if (got == 0) return Lost("data", "the compressed stream is cut short");
    offset_ += got;
    stream_.next_in = packed_.data();
    stream_.avail_in = static_cast<uInt>(got);
    return absl::OkStatus();
  }

  absl::Status Step() {
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result == Z_STREAM_END) return NextMember();
    if (result == Z_OK || result == Z_BUF_ERROR) return absl::OkStatus();
    return Lost("data", "the compressed stream is corrupt");
  }

  // A file of gzip may hold several members, one after the other.
  absl::Status NextMember() {
    if (stream_.avail_in == 0 && offset_ >= input_.bytes()) {
      finished_ = true;
      return absl::OkStatus();
    }
    if (inflateReset(&stream_) == Z_OK) return absl::OkStatus();
    return Lost("data", "the compressed stream is corrupt");
  }

  const Input& input_;
  int64_t offset_;
  std::vector<uint8_t> packed_;
  z_stream stream_{};
  bool finished_ = false;
};

absl::Status Ends(int64_t got, int64_t wanted) {
  return Lost("data", absl::StrCat("ends after ", got, " of ", wanted, " bytes"));
}

absl::StatusOr<std::vector<uint8_t>> ReadRaw(const Input& input, const SampleSource& source, int64_t bytes) {
  const int64_t there = std::max<int64_t>(0, input.bytes() - source.offset);
  const int64_t before = source.at_end ? there - bytes : source.skip;
  if (before < 0 || there - before < bytes)
    return Ends(std::max<int64_t>(0, there - std::max<int64_t>(0, before)), bytes);
  if (there - before > bytes) return Invalid("data", "there are more bytes than the header says");
  std::vector<uint8_t> samples(bytes);
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t got, input.ReadAt(source.offset + before, samples.data(), bytes));
  if (got != bytes) return Ends(got, bytes);
  return samples;
}

absl::Status SkipBytes(Inflater& inflater, int64_t count) {
  std::vector<uint8_t> scratch(std::min(count, kStep));
  while (count > 0) {
    const int64_t step = std::min(count, kStep);
    INTRAWARP_ASSIGN_OR_RETURN(const int64_t got, inflater.Read(scratch.data(), step));
    if (got != step) return Lost("data", "ends before the samples");
    count -= step;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint8_t>> ReadDeflated(const Input& input, const SampleSource& source, int64_t bytes) {
  const int64_t packed = std::max<int64_t>(0, input.bytes() - source.offset);
  if (bytes / kMostPacked > packed || source.skip / kMostPacked > packed) {
    return Lost("data", "the file is too short for the size that its header says");
  }
  Inflater inflater(input, source.offset);
  INTRAWARP_RETURN_IF_ERROR(inflater.Begin());
  INTRAWARP_RETURN_IF_ERROR(SkipBytes(inflater, source.skip));
  std::vector<uint8_t> samples;
  int64_t next = std::min(bytes, std::max(kFirstAllocation, 8 * packed));
  for (int64_t done = 0; done < bytes;) {
    samples.resize(next);
    INTRAWARP_ASSIGN_OR_RETURN(const int64_t got, inflater.Read(samples.data() + done, next - done));
    if (got != next - done) return Ends(done + got, bytes);
    done = next;
    next = std::min(bytes, 2 * next);
  }
  INTRAWARP_RETURN_IF_ERROR(inflater.ExpectEnd());
  return samples;
}

template <typename T>
absl::Status Convert(const std::vector<uint8_t>& samples, int components, const Vec3d& sign, std::vector<float>* out) {
  const size_t vectors = samples.size() / sizeof(T) / components;
  out->assign(3 * vectors, 0.0f);
  for (size_t i = 0; i < vectors; ++i) {
    for (int c = 0; c < components; ++c) {
      T value;
      std::memcpy(&value, samples.data() + (i * components + c) * sizeof(T), sizeof(T));
      const float v = static_cast<float>(sign[c] * static_cast<double>(value)) + 0.0f;
      if (!std::isfinite(v)) return Invalid("displacement", absl::StrCat("voxel ", i, " is not finite"));
      (*out)[3 * i + c] = v;
    }
  }
  return absl::OkStatus();
}

template <size_t kSize>
void SwapEach(std::vector<uint8_t>& samples) {
  for (size_t at = 0; at + kSize <= samples.size(); at += kSize) {
    std::reverse(samples.begin() + static_cast<ptrdiff_t>(at), samples.begin() + static_cast<ptrdiff_t>(at + kSize));
  }
}

// The data file that a header written by WriteDetached names.
std::optional<std::string> DetachedNameIn(const std::string& header) {
  const absl::StatusOr<std::string> text = ReadSmallFile(header, kMaxOldHeader);
  if (!text.ok()) return std::nullopt;
  const std::string stem = absl::StrCat(std::filesystem::path(header).stem().string(), ".");
  const size_t at = text->rfind(stem);
  if (at == std::string::npos) return std::nullopt;
  const std::string name = text->substr(at, text->find_first_of("\r\n", at) - at);
  const std::string digest = name.substr(stem.size(), 2 * kDigestBytes + 1);
  const bool ours = digest.size() == 2 * kDigestBytes + 1 && digest.back() == '.' &&
                    std::all_of(digest.begin(), digest.end() - 1, [](char c) { return absl::ascii_isxdigit(c); }) &&
                    name.find('/') == std::string::npos;
  return ours ? std::optional<std::string>(name) : std::nullopt;
}

}  // namespace

absl::StatusOr<std::string> ReadHead(const std::string& path, int64_t max_bytes, bool* whole) {
  INTRAWARP_ASSIGN_OR_RETURN(const Input input, Input::Open(path));
  std::string head(static_cast<size_t>(std::min(max_bytes, input.bytes())), '\0');
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t got, input.ReadAt(0, head.data(), static_cast<int64_t>(head.size())));
  head.resize(static_cast<size_t>(got));
  *whole = got == input.bytes();
  return head;
}

absl::StatusOr<std::string> DataFileBeside(const std::string& header, absl::string_view name, absl::string_view field) {
  absl::ConsumePrefix(&name, "./");  // as teem writes it
  const bool plain = !name.empty() && name != "." && name != ".." && name.find('/') == absl::string_view::npos &&
                     name.find('\\') == absl::string_view::npos && name.find('\0') == absl::string_view::npos;
  if (!plain) return Invalid(field, "must be the name of a file in the folder of its header");
  const std::string path = (std::filesystem::path(header).parent_path() / std::string(name)).string();
  struct stat info;
  if (lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
    return Invalid(field, "names a symbolic link");
  }
  return path;
}

bool NamesSeveralFiles(absl::string_view name) {
  return name == "LIST" || absl::StartsWith(name, "LIST ") ||
         (absl::StrContains(name, '%') && absl::StrContains(name, ' '));
}

absl::StatusOr<std::vector<uint8_t>> ReadSamples(const SampleSource& source, int64_t bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(const Input input, Input::Open(source.path));
  return source.packing == Packing::kRaw ? ReadRaw(input, source, bytes) : ReadDeflated(input, source, bytes);
}

void SwapSamples(PixelType type, std::vector<uint8_t>* samples) {
  switch (BytesPerPixel(type)) {
    case 2:
      return SwapEach<2>(*samples);
    case 4:
      return SwapEach<4>(*samples);
    case 8:
      return SwapEach<8>(*samples);
    default:
      return;
  }
}

absl::StatusOr<std::vector<float>> ToDisplacement(const std::vector<uint8_t>& samples, PixelType type, int components,
                                                  const Vec3d& sign, absl::string_view field) {
  std::vector<float> out;
  if (type == PixelType::kFloat32) {
    INTRAWARP_RETURN_IF_ERROR(Convert<float>(samples, components, sign, &out));
  } else if (type == PixelType::kFloat64) {
    INTRAWARP_RETURN_IF_ERROR(Convert<double>(samples, components, sign, &out));
  } else {
    return FieldError(absl::StatusCode::kUnimplemented, field, "of a displacement field must be float32 or float64");
  }
  return out;
}

absl::Status WriteSamples(AtomicFile& file, Packing packing, const void* data, int64_t bytes) {
  if (packing == Packing::kRaw) return file.Write(data, static_cast<size_t>(bytes));
  z_stream stream{};
  constexpr int kMemoryLevel = 8;
  if (deflateInit2(&stream, kFastest, Z_DEFLATED, packing == Packing::kGzip ? kGzipBits : kZlibBits, kMemoryLevel,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return FieldError(absl::StatusCode::kResourceExhausted, "file", "no memory to write it");
  }
  std::vector<uint8_t> packed(kStep);
  absl::Status status;
  int64_t done = 0;
  for (int result = Z_OK; result != Z_STREAM_END && status.ok();) {
    if (stream.avail_in == 0) {
      stream.next_in = static_cast<Bytef*>(const_cast<void*>(data)) + done;
      stream.avail_in = static_cast<uInt>(std::min(bytes - done, kStep));
      done += stream.avail_in;
    }
    stream.next_out = packed.data();
    stream.avail_out = static_cast<uInt>(packed.size());
    result = deflate(&stream, done == bytes ? Z_FINISH : Z_NO_FLUSH);
    status = file.Write(packed.data(), packed.size() - stream.avail_out);
  }
  deflateEnd(&stream);
  return status;
}

std::string DetachedName(const std::string& header, const void* data, int64_t bytes, absl::string_view suffix) {
  const std::string digest = Sha256Of(data, static_cast<size_t>(bytes)).substr(0, kDigestBytes);
  return absl::StrCat(std::filesystem::path(header).stem().string(), ".", absl::BytesToHexString(digest), suffix);
}

absl::Status WriteDetached(const std::string& header, absl::string_view header_text, const std::string& data_name,
                           const void* data, int64_t bytes) {
  if (NamesSeveralFiles(data_name)) return Invalid("path", "readers would take the name for a list of files");
  const std::filesystem::path folder = std::filesystem::path(header).parent_path();
  const std::optional<std::string> old = DetachedNameIn(header);
  INTRAWARP_ASSIGN_OR_RETURN(AtomicFile samples, AtomicFile::Create((folder / data_name).string()));
  INTRAWARP_RETURN_IF_ERROR(samples.Write(data, static_cast<size_t>(bytes)));
  INTRAWARP_RETURN_IF_ERROR(samples.Commit());
  INTRAWARP_RETURN_IF_ERROR(WriteSmallFile(header, header_text));
  if (old.has_value() && *old != data_name) unlink((folder / *old).c_str());
  return absl::OkStatus();
}

HostVolume WithoutRescale(const HostVolume& volume) {
  if (volume.rescale_slope == 1 && volume.rescale_intercept == 0) return volume;
  const std::vector<float> values = ToFloat(volume);
  HostVolume out;
  out.geometry = volume.geometry;
  out.pixel_type = PixelType::kFloat32;
  out.pixels.resize(values.size() * sizeof(float));
  std::memcpy(out.pixels.data(), values.data(), out.pixels.size());
  return out;
}

}  // namespace intrawarp::io
