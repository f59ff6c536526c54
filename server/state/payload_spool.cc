// SPDX-License-Identifier: Apache-2.0
#include "server/state/payload_spool.h"

#include <algorithm>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "io/file/digest.h"

namespace intrawarp::state {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;

absl::Status Damaged(const std::string& digest, absl::string_view how) {
  return absl::DataLossError(absl::StrCat(PayloadSpool::FileName(digest), " ", how));
}

// An open payload of the size that it should have.
absl::StatusOr<std::unique_ptr<File>> OpenWhole(FileLayer& files, const std::string& path, const std::string& digest,
                                                int64_t bytes) {
  absl::StatusOr<std::unique_ptr<File>> file = files.Open(path, OpenMode::kRead);
  if (absl::IsNotFound(file.status())) return Damaged(digest, "is missing");
  INTRAWARP_RETURN_IF_ERROR(file.status());
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t size, (*file)->Size());
  if (size == bytes) return file;
  return Damaged(digest, absl::StrCat("has ", size, " bytes instead of ", bytes));
}

absl::Status ReadPiece(File& file, const std::string& digest, int64_t offset, absl::Span<char> to) {
  INTRAWARP_ASSIGN_OR_RETURN(const size_t read, file.ReadAt(offset, to.data(), to.size()));
  return read == to.size() ? absl::OkStatus() : Damaged(digest, "ends too early");
}

}  // namespace

std::string PayloadSpool::FileName(const std::string& digest) {
  return absl::StrCat("spool/", absl::BytesToHexString(digest));
}

std::optional<std::string> PayloadSpool::DigestIn(absl::string_view name) {
  const bool is_digest = name.size() == 2 * io::Sha256::kBytes && std::all_of(name.begin(), name.end(), [](char c) {
                           return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
                         });
  if (!is_digest) return std::nullopt;
  return absl::HexStringToBytes(name);
}

std::string PayloadSpool::Path(const std::string& digest) const {
  return absl::StrCat(folder_, "/", absl::BytesToHexString(digest));
}

absl::Status PayloadSpool::Create() { return files_.MakeDirectory(folder_); }

absl::Status PayloadSpool::WriteTemporary(const std::string& path, absl::Span<const char> bytes) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Open(path, OpenMode::kWrite));
  const auto total = static_cast<int64_t>(bytes.size());
  for (int64_t begin = 0; begin < total; begin += kPieceBytes) {
    const int64_t piece = std::min(kPieceBytes, total - begin);
    INTRAWARP_RETURN_IF_ERROR(file->WriteAt(begin, bytes.data() + begin, static_cast<size_t>(piece)));
  }
  return file->Sync();
}

absl::Status PayloadSpool::Write(const std::string& digest, absl::Span<const char> bytes) {
  const std::string temporary = absl::StrCat(folder_, "/new-", next_temporary_++);
  absl::Status status = WriteTemporary(temporary, bytes);
  if (status.ok()) status = files_.Rename(temporary, Path(digest));
  if (!status.ok()) {
    (void)files_.Remove(temporary);  // the next start removes what this leaves
    return status;
  }
  return files_.SyncDirectory(folder_);
}

absl::Status PayloadSpool::Read(const std::string& digest, absl::Span<char> to) const {
  const auto total = static_cast<int64_t>(to.size());
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, OpenWhole(files_, Path(digest), digest, total));
  io::Sha256 hash;
  for (int64_t begin = 0; begin < total; begin += kPieceBytes) {
    const absl::Span<char> piece = to.subspan(static_cast<size_t>(begin), static_cast<size_t>(kPieceBytes));
    INTRAWARP_RETURN_IF_ERROR(ReadPiece(*file, digest, begin, piece));
    hash.Update(piece.data(), piece.size());
  }
  return hash.Finish() == digest ? absl::OkStatus() : Damaged(digest, "does not have its SHA-256");
}

absl::Status PayloadSpool::Verify(const std::string& digest, int64_t bytes) const {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, OpenWhole(files_, Path(digest), digest, bytes));
  std::vector<char> buffer(static_cast<size_t>(std::min(kPieceBytes, bytes)));
  io::Sha256 hash;
  for (int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const absl::Span<char> piece(buffer.data(), static_cast<size_t>(std::min(kPieceBytes, bytes - begin)));
    INTRAWARP_RETURN_IF_ERROR(ReadPiece(*file, digest, begin, piece));
    hash.Update(piece.data(), piece.size());
  }
  return hash.Finish() == digest ? absl::OkStatus() : Damaged(digest, "does not have its SHA-256");
}

absl::Status PayloadSpool::Remove(const std::string& digest) {
  const absl::Status removed = files_.Remove(Path(digest));
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

absl::StatusOr<PayloadSpool::Contents> PayloadSpool::List() const {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(folder_));
  Contents contents;
  for (const std::string& name : names) {
    std::optional<std::string> digest = DigestIn(name);
    if (digest) {
      contents.digests.push_back(*std::move(digest));
    } else {
      contents.others.push_back(name);
    }
  }
  return contents;
}

absl::StatusOr<int> PayloadSpool::RemoveTemporary() {
  INTRAWARP_ASSIGN_OR_RETURN(const Contents contents, List());
  for (const std::string& name : contents.others) {
    INTRAWARP_RETURN_IF_ERROR(files_.Remove(absl::StrCat(folder_, "/", name)));
  }
  return static_cast<int>(contents.others.size());
}

}  // namespace intrawarp::state
