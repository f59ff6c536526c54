// SPDX-License-Identifier: Apache-2.0
// Session: what one run of the command line holds: the client, what Ctrl-C cancels, and the resources that it uploaded
// for its own use and deletes again. Thread safety: thread-compatible.
#ifndef INTRAWARP_CLIENT_CLI_SESSION_H_
#define INTRAWARP_CLIENT_CLI_SESSION_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "io/itk_transform.h"
#include "io/nifti.h"

namespace intrawarp::cli {

class Session {
 public:
  // Both outlive the session. `client` may be null for commands that need none.
  Session(client::Client* client, client::Cancellation* interrupt) : client_(client), interrupt_(interrupt) {}

  client::Client& client() { return *client_; }
  // Options for a call that Ctrl-C cancels.
  client::CallOptions call() const { return {.cancellation = interrupt_}; }
  // CANCELLED once Ctrl-C was pressed.
  absl::Status CheckInterrupt() const;
  // Uploads under the id or, when that is empty, under one that the server chooses. `path` is for messages.
  absl::StatusOr<v1::UploadResponse> Upload(const io::HostVolume& volume, const std::string& path,
                                            const std::string& id);
  absl::StatusOr<v1::UploadResponse> UploadMatrix(const client::SparseMatrix& matrix, const std::string& path,
                                                  const std::string& id);

 private:
  client::Client* const client_;
  client::Cancellation* const interrupt_;
};

// The volumes, transforms and matrices that a command names by PATH: uploaded when first asked for, deleted at the end,
// whatever happened.
class Temporaries {
 public:
  explicit Temporaries(Session& session) : session_(session) {}
  Temporaries(const Temporaries&) = delete;
  Temporaries& operator=(const Temporaries&) = delete;
  ~Temporaries() { (void)DeleteAll(); }

  // "volumes/ID" as it is; otherwise the name of the uploaded file.
  absl::StatusOr<std::string> Volume(const std::string& x);
  // "transforms/ID" as it is; otherwise the name of the uploaded matrix (.txt), transform in ITK's form (.tfm, .h5),
  // DICOM registration object, field or velocity.
  absl::StatusOr<std::string> Transform(const std::string& t);

  // "matrices/ID" as it is; otherwise the name of the uploaded file, its values of this type, which is the same for all
  // matrices of a command.
  absl::StatusOr<std::string> Matrix(const std::string& x, ValueType type);

  // The first error, after all have been tried; what is gone already is no error.
  absl::Status DeleteAll();

 private:
  absl::StatusOr<std::string> UploadMatrixFile(const std::string& path);
  absl::StatusOr<std::string> UploadItkFile(const std::string& path);
  absl::StatusOr<std::string> UploadRegistrationFile(const std::string& path);
  absl::StatusOr<std::string> UploadComposed(const std::string& path, const io::ItkTransform& file);
  absl::StatusOr<std::string> UploadFieldFile(const std::string& path);
  absl::StatusOr<std::string> UploadVelocityFile(const std::string& path);

  Session& session_;
  // Names by path.
  std::map<std::string, std::string> volumes_;
  std::map<std::string, std::string> transforms_;
  std::map<std::string, std::string> matrices_;
};

bool IsVolumeName(const std::string& x);
bool IsTransformName(const std::string& x);

// Prefixes the message with the file or option that it is about; keeps the code.
absl::Status Annotate(const absl::Status& status, const std::string& subject);

// One line on a terminal that is overwritten again and again; nothing where stderr is not a terminal.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { Clear(); }
  void Show(const std::string& text);
  void Clear();

 private:
  const bool terminal_;
  bool shown_ = false;
};

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_SESSION_H_
