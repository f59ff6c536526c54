// SPDX-License-Identifier: Apache-2.0
// CommandContext is what one run of the command line holds: its servers and the one that it works on, what Ctrl-C
// cancels, and the resources that it uploaded for its own use and deletes again. Thread safety: thread-compatible.
#ifndef INTRAWARP_CLIENT_CLI_COMMAND_CONTEXT_H_
#define INTRAWARP_CLIENT_CLI_COMMAND_CONTEXT_H_

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/volume_file.h"
#include "client/cpp/client.h"
#include "client/cpp/routed_client.h"
#include "io/format/itk_transform.h"
#include "io/format/nifti.h"

namespace intrawarp::cli {

// How the command line reaches its server, or several of them.
struct Connection {
  std::string target;
  client::ClientOptions options;
  std::string routing_key = {};  // --routing_key
  std::string traceparent = {};  // as in CallOptions
};

class CommandContext {
 public:
  // The pointers outlive the context. `servers` may be null for commands that need none; `connection` is then empty.
  CommandContext(client::RoutedClient* servers, client::Cancellation* interrupt, Connection connection = {})
      : servers_(servers), interrupt_(interrupt), connection_(std::move(connection)) {}

  client::RoutedClient& servers() { return *servers_; }
  const std::string& routing_key() const { return connection_.routing_key; }
  // From now on client() is the one of this server, which servers() names.
  absl::Status Use(const std::string& address);
  client::Client& client() { return *client_; }
  const std::string& target() const { return connection_.target; }
  // Another client of the only server, with connections of its own. Thread-safe.
  absl::StatusOr<std::unique_ptr<client::Client>> ConnectAnother() const {
    return client::Client::Connect(connection_.target, connection_.options);
  }
  // Options for a call that Ctrl-C cancels.
  client::CallOptions call() const {
    return {.cancellation = interrupt_, .traceparent = connection_.traceparent, .routing_key = connection_.routing_key};
  }
  // CANCELLED once Ctrl-C was pressed.
  absl::Status CheckInterrupt() const;
  // Runs `work` again where the server says that it will be worth it, and after the time that it names (RetryInfo of
  // UNAVAILABLE and ABORTED): a few times and within a minute in all. stderr tells each wait. With several servers
  // nothing is repeated, since the next one is tried.
  absl::Status Retrying(const std::function<absl::Status()>& work) const;

  // How the axes of a file that states no orientation lie: "LPS", "RAS", or empty, which takes LPS and says so.
  void AssumeOrientation(std::string orientation) { orientation_ = std::move(orientation); }
  const std::string& assumed_orientation() const { return orientation_; }
  // Says once for each path on stderr that a file states no orientation, unless one is assumed.
  void TellOrientation(const std::string& path, const io::HostVolume& volume);

  // Prints what --json asks for. Between BeginJson and EndJson it becomes a member, which the server names, of an
  // object that EndJson prints.
  void PrintJson(const nlohmann::ordered_json& json);
  void BeginJson() { collects_json_ = true; }
  void EndJson();

  // LoadVolume, which remembers the last volume where several servers may need it again.
  absl::StatusOr<std::shared_ptr<const LoadedVolume>> Load(const std::string& path,
                                                           const VolumeFileOptions& options = {});
  // Uploads under the id or, when that is empty, under one that the server chooses. `path` is for messages.
  absl::StatusOr<v1::UploadResponse> Upload(const LoadedVolume& volume, const std::string& path, const std::string& id,
                                            bool pinned = false);
  absl::StatusOr<v1::UploadResponse> UploadMatrix(const client::SparseMatrix& matrix, const std::string& path,
                                                  const std::string& id);
  // Uploads only the values of `matrix`, for the pattern of the resident matrix `pattern` (sparseMatrices/ID).
  // INVALID_ARGUMENT when the resident matrix has entries at other places.
  absl::StatusOr<v1::UploadResponse> UploadMatrixValues(const client::SparseMatrix& matrix, const std::string& pattern,
                                                        const std::string& path, const std::string& id);

 private:
  client::RoutedClient* const servers_;
  client::Cancellation* const interrupt_;
  const Connection connection_;
  client::Client* client_ = nullptr;
  std::string address_;
  std::string orientation_;
  std::set<std::string> told_;  // paths of TellOrientation
  bool collects_json_ = false;
  nlohmann::ordered_json json_ = nlohmann::ordered_json::object();
  std::string loaded_path_;
  std::shared_ptr<const LoadedVolume> loaded_;
};

// The volumes, transforms and matrices that a command names by PATH: uploaded when first asked for, to the server that
// the context used then, and deleted there at the end, whatever happened.
class Temporaries {
 public:
  explicit Temporaries(CommandContext& context) : context_(context), client_(context.client()) {}
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

  // Deletes the volume that was uploaded for this file, if any. One that cannot be deleted now is left to DeleteAll.
  void DropVolume(const std::string& path);

  // The first error, after all have been tried, or the server does not answer in time; what is gone already is no
  // error.
  absl::Status DeleteAll();

 private:
  absl::StatusOr<std::string> UploadMatrixFile(const std::string& path);
  absl::StatusOr<std::string> UploadItkFile(const std::string& path);
  absl::StatusOr<std::string> UploadRegistrationFile(const std::string& path);
  absl::StatusOr<std::string> UploadComposed(const std::string& path, const io::ItkTransform& file);
  absl::StatusOr<std::string> UploadFieldFile(const std::string& path);
  absl::StatusOr<std::string> UploadVelocityFile(const std::string& path);

  CommandContext& context_;
  client::Client& client_;
  // Names by path.
  std::map<std::string, std::string> volumes_;
  // The paths of volumes whose upload has not been answered well.
  std::set<std::string> unsure_;
  std::map<std::string, std::string> transforms_;
  std::map<std::string, std::string> matrices_;
};

bool IsVolumeName(const std::string& x);
bool IsTransformName(const std::string& x);

// The last column of a list: a tab and the owner; empty on a server without identities.
std::string OwnerColumn(const std::string& owner);

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

#endif  // INTRAWARP_CLIENT_CLI_COMMAND_CONTEXT_H_
