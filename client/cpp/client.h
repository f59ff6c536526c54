// SPDX-License-Identifier: Apache-2.0
// Client: one server, as typed synchronous calls.
//
// A client keeps two connections, one for control (small questions and answers) and one for bulk (all that streams), so
// that a small call never waits behind a field. Both connect lazily, on the first call; a server that cannot be reached
// makes a call fail at once with UNAVAILABLE. Nothing is compressed: voxels and fields do not shrink enough to pay.
//
// Errors are the server's, with what google.rpc details say folded into the message (rpc_status.h), or:
//   UNAVAILABLE (no connection, or it broke), DEADLINE_EXCEEDED and CANCELLED (CallOptions), DATA_LOSS (a stream with
//   missing, doubled, misplaced or damaged chunks), INTERNAL (an answer that contradicts itself).
//
// Thread safety: every method may be called from several threads at once.
#ifndef INTRAWARP_CLIENT_CPP_CLIENT_H_
#define INTRAWARP_CLIENT_CPP_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cpp/call_options.h"
#include "client/cpp/grid_data.h"
#include "client/cpp/navigate_stream.h"
#include "client/cpp/sparse_matrix.h"
#include "engine/base/pixel_type.h"
#include "engine/geometry/geometry.h"
#include "engine/geometry/vec.h"
#include "intrawarp/v1/bulk.pb.h"
#include "intrawarp/v1/operation.pb.h"
#include "intrawarp/v1/pacs.pb.h"
#include "intrawarp/v1/registration.pb.h"
#include "intrawarp/v1/server.pb.h"
#include "intrawarp/v1/sparse_matrix.pb.h"
#include "intrawarp/v1/transform.pb.h"
#include "intrawarp/v1/volume.pb.h"

namespace intrawarp::client {

// How a client proves who it is, and knows the server. Paths of PEM files; empty: none. Without tls_ca the connection
// is plain text, and nothing else may be given. The files are read by Connect.
struct ChannelSecurity {
  // The authorities that the server's certificate must come from; it must name the host of the target.
  std::string tls_ca;
  // The client's certificate chain and private key, both or none.
  std::string tls_cert;
  std::string tls_key;
  // A file whose only word is a bearer token.
  std::string token_file;
};

struct ClientOptions {
  ChannelSecurity security = {};
  // For calls with a single small answer; CallOptions.timeout overrides it.
  std::chrono::milliseconds unary_timeout{30000};
  // How long a connection with calls may be silent before it is probed, and how long the probe may take.
  std::chrono::milliseconds keepalive_time{20000};
  std::chrono::milliseconds keepalive_timeout{10000};
  // The size of a chunk that is sent; at most the server's limits.max_chunk_bytes.
  int64_t chunk_bytes = int64_t{1} << 20;
  // A volume or field larger than this is refused with RESOURCE_EXHAUSTED before memory is asked for.
  int64_t max_answer_bytes = int64_t{16} << 30;
  // An upload or a download gives up after this many streams in a row that brought nothing further.
  int transfer_attempts = 6;
  // When uploads, downloads and WarpVolume take their connection for silent, and go on over a new one: nothing of the
  // stream has moved for this long (no chunk came or was taken by the transport), a small question over the same
  // connection was not answered for as long again, and still nothing had moved. So a server that computes, and one that
  // reads slowly, keep their streams. Where a chunk takes longer than this on the line (8 Mbit/s with 1 MiB), raise it,
  // or lower chunk_bytes. 0: keepalive alone decides.
  std::chrono::milliseconds stall_timeout{500};
  // Likewise for the streams of sessions, which then end UNAVAILABLE. A session without frames is asked, too. 0:
  // keepalive alone decides.
  std::chrono::milliseconds session_stall_timeout{0};
  // HOST:PORT that the server's certificate must name, where the target is an address; empty: the target's.
  std::string authority = {};
};

// One volume to be uploaded. The bytes are not copied; they stay valid during the call.
struct VolumeUpload {
  // The wanted id; empty: the server chooses one.
  std::string id;
  Geometry geometry;
  PixelType pixel_type = PixelType::kFloat32;
  // Dense, x fastest, little-endian.
  absl::string_view bytes;
  // A stored value v means v * slope + intercept; both 0: none.
  double rescale_slope = 0;
  double rescale_intercept = 0;
  // The volume stays on the device also where memory is short.
  bool pinned = false;
  // Where the volume comes from; without a source: unknown.
  v1::Provenance provenance = {};
  // Called from the calling thread after each chunk; after a broken stream `sent` may go back.
  std::function<void(int64_t sent, int64_t total)> on_progress;
};

// SHA-256 of a volume's bytes, as 64 hexadecimal digits.
std::string VolumeDigest(absl::string_view bytes);

// A transform to be uploaded in its native form. The coefficients are not copied; they stay valid during the call.
struct ControlGridUpload {
  AffineMap affine;
  // The grid of the control points, with ITK's meaning.
  Geometry geometry;
  // The fixed image's grid, where it is known.
  std::optional<Geometry> domain;
  // LPS mm, x y z interleaved.
  absl::Span<const float> coefficients;
};

// A transform T(x) = A(exp(v)(x)). The velocity is not copied; it stays valid during the call.
struct VelocityUpload {
  AffineMap affine;
  // The grid of the voxels of v, which is the transform's domain.
  Geometry geometry;
  // LPS mm, x y z interleaved.
  absl::Span<const float> velocity;
};

using ProgressCallback = std::function<void(const v1::Progress& progress)>;

class Client {
 public:
  // Does not connect yet. `target` is HOST:PORT, or any gRPC name ("unix:/path"). INVALID_ARGUMENT for an empty target
  // or options out of range; the errors of MakeCredentials.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& target, const ClientOptions& options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Every upload is idempotent by content: when the same object is resident under the wanted id or, without one, under
  // an id that the server chose, that one is the answer (already_resident). An upload or a download whose stream breaks
  // or goes silent is resumed where it got to; a server that cannot be reached in the first place is an error at once.
  // A download whose object has changed meanwhile is ABORTED.
  absl::StatusOr<v1::UploadResponse> UploadVolume(const VolumeUpload& upload, const CallOptions& options = {});
  absl::StatusOr<v1::Volume> GetVolume(const std::string& name, const CallOptions& options = {});
  // All pages.
  absl::StatusOr<std::vector<v1::Volume>> ListVolumes(const CallOptions& options = {});
  // The voxels as float32.
  absl::StatusOr<v1::Volume> DownloadVolume(const std::string& name, const GridSink& voxels,
                                            const CallOptions& options = {});
  absl::Status DeleteVolume(const std::string& name, const CallOptions& options = {});

  // `field` gets the displacement on the fixed image's grid (or what the encoding that the request names gives
  // instead); it may be null when the request names none. `on_progress` (may be null) is called from the calling
  // thread.
  absl::StatusOr<v1::RegisterResult> Register(const v1::RegisterRequest& request, const ProgressCallback& on_progress,
                                              const GridSink& field, const CallOptions& options = {});
  // Opens a stream of frames. CallOptions.timeout bounds the whole stream. The client outlives the stream.
  std::unique_ptr<NavigateStream> Navigate(const v1::NavigateConfig& config, const CallOptions& options = {});

  absl::StatusOr<v1::Transform> GetTransform(const std::string& name, const CallOptions& options = {});
  // All pages; without reports.
  absl::StatusOr<std::vector<v1::Transform>> ListTransforms(const CallOptions& options = {});
  absl::Status DeleteTransform(const std::string& name, const CallOptions& options = {});
  // `id` may be empty.
  absl::StatusOr<v1::Transform> UploadAffine(const std::string& id, const AffineMap& affine,
                                             const CallOptions& options = {});
  // `displacement`: 3 floats a voxel.
  absl::StatusOr<v1::Transform> UploadField(const std::string& id, const Geometry& geometry,
                                            absl::Span<const float> displacement, const CallOptions& options = {});
  // T(x) = A(x + u(x)), u on a control grid.
  absl::StatusOr<v1::Transform> UploadControlGrid(const std::string& id, const ControlGridUpload& grid,
                                                  const CallOptions& options = {});
  // T(x) = A(exp(v)(x)).
  absl::StatusOr<v1::Transform> UploadVelocity(const std::string& id, const VelocityUpload& velocity,
                                               const CallOptions& options = {});
  // `field` gets displacements on the grid asked for, decoded to float32 whatever the encoding, or the velocity there,
  // or the coefficients of the control grid; the header tells the rest.
  absl::StatusOr<v1::FieldHeader> DownloadField(const v1::DownloadRequest& request, const GridSink& field,
                                                const CallOptions& options = {});
  absl::Status WarpVolume(const v1::WarpVolumeRequest& request, const GridSink& voxels,
                          const CallOptions& options = {});
  // LPS mm, any number of points; sent in batches. A point whose inverse was not found is NaN NaN NaN.
  absl::StatusOr<std::vector<Vec3d>> MapPoints(const std::string& transform, absl::Span<const Vec3d> points,
                                               bool inverse, const CallOptions& options = {});

  // INVALID_ARGUMENT for what is no CSR.
  absl::StatusOr<v1::UploadResponse> UploadSparseMatrix(const SparseMatrixUpload& upload,
                                                        const CallOptions& options = {});
  // A new matrix with the rows, columns and entries of a resident one. INVALID_ARGUMENT for another number of values.
  absl::StatusOr<v1::UploadResponse> UploadSparseMatrixValues(const SparseMatrixValuesUpload& upload,
                                                              const CallOptions& options = {});
  absl::StatusOr<v1::SparseMatrix> GetSparseMatrix(const std::string& name, const CallOptions& options = {});
  // All pages.
  absl::StatusOr<std::vector<v1::SparseMatrix>> ListSparseMatrices(const CallOptions& options = {});
  // After a failed call the content of `matrix` is unspecified; after a good one it is a valid CSR.
  absl::StatusOr<v1::SparseMatrix> DownloadSparseMatrix(const std::string& name, SparseMatrix* matrix,
                                                        const CallOptions& options = {});
  absl::Status DeleteSparseMatrix(const std::string& name, const CallOptions& options = {});
  // `product` gets C unless the request keeps it; it may be null then. `on_progress` (may be null) is called from the
  // calling thread.
  absl::StatusOr<v1::MultiplyResult> Multiply(const v1::MultiplyRequest& request,
                                              const MultiplyProgressCallback& on_progress, SparseMatrix* product,
                                              const CallOptions& options = {});
  // The same for R op(A) P, or P^T op(A) P.
  absl::StatusOr<v1::MultiplyResult> MultiplyTriple(const v1::MultiplyTripleRequest& request,
                                                    const MultiplyProgressCallback& on_progress, SparseMatrix* product,
                                                    const CallOptions& options = {});

  // Begins work that goes on without the call (operation.proto): the request with `detach`, and with a UUID where it
  // has no request_id. Returns once the work is admitted. A repetition with the same id finds the operation.
  absl::StatusOr<v1::Operation> StartRegister(v1::RegisterRequest request, const CallOptions& options = {});
  absl::StatusOr<v1::Operation> StartMultiply(v1::MultiplyRequest request, const CallOptions& options = {});
  absl::StatusOr<v1::Operation> StartMultiplyTriple(v1::MultiplyTripleRequest request, const CallOptions& options = {});
  absl::StatusOr<v1::Operation> GetOperation(const std::string& name, const CallOptions& options = {});
  // All pages.
  absl::StatusOr<std::vector<v1::Operation>> ListOperations(const CallOptions& options = {});
  // The operation once it has ended, however it did; over new connections where one breaks, as of transfer_attempts.
  // CallOptions.timeout bounds the whole: DEADLINE_EXCEEDED.
  absl::StatusOr<v1::Operation> WaitOperation(const std::string& name, const CallOptions& options = {});
  // Gives its state then: the work ends soon.
  absl::StatusOr<v1::Operation> CancelOperation(const std::string& name, const CallOptions& options = {});

  absl::StatusOr<v1::ServerInfo> GetServerInfo(const CallOptions& options = {});
  // The levels of every room from then on.
  absl::StatusOr<std::vector<v1::RoomLogLevel>> SetLogLevel(const v1::SetLogLevelRequest& request,
                                                            const CallOptions& options = {});
  // The archives that series can be imported from, by name.
  absl::StatusOr<std::vector<v1::Remote>> ListRemotes(const CallOptions& options = {});
  absl::Status EchoRemote(const std::string& remote, const CallOptions& options = {});
  absl::StatusOr<v1::FindSeriesResponse> FindSeries(const v1::FindSeriesRequest& request,
                                                    const CallOptions& options = {});
  // Begins an import, or finds the one that an earlier request with this id began.
  absl::StatusOr<v1::Operation> ImportSeries(const v1::ImportSeriesRequest& request, const CallOptions& options = {});
  // The operation once it has ended, or as it is after `wait`.
  absl::StatusOr<v1::Operation> WaitOperation(const std::string& name, std::chrono::milliseconds wait,
                                              const CallOptions& options = {});

  // grpc.health.v1: true when SERVING. An empty service asks for the server as a whole.
  absl::StatusOr<bool> IsServing(const std::string& service = "", const CallOptions& options = {});

  // Internal to the client library.
  struct Impl;

 private:
  explicit Client(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_CLIENT_H_
