// SPDX-License-Identifier: Apache-2.0
// The transform calls of Client.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/client_impl.h"
#include "wire/convert.h"

namespace intrawarp::client {
namespace {

// Points a call: what the server takes, so that no message passes a chunk.
constexpr size_t kMaxPoints = 32768;
// More points than this go over the bulk connection.
constexpr size_t kControlPoints = 1024;

absl::string_view Bytes(absl::Span<const float> values) {
  return absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

v1::MapPointsRequest MakeRequest(const std::string& transform, absl::Span<const Vec3d> points, bool inverse) {
  v1::MapPointsRequest request;
  request.set_transform(transform);
  request.set_inverse(inverse);
  request.mutable_points()->Reserve(static_cast<int>(3 * points.size()));
  for (const Vec3d& p : points) {
    for (double value : {p.x, p.y, p.z}) request.add_points(value);
  }
  return request;
}

}  // namespace

absl::StatusOr<v1::Transform> Client::GetTransform(const std::string& name, const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::GetTransformRequest request;
  request.set_name(name);
  v1::GetTransformResponse response;
  INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(impl_->transforms.GetTransform(call.context(), request, &response)));
  return std::move(*response.mutable_transform());
}

absl::StatusOr<std::vector<v1::Transform>> Client::ListTransforms(const CallOptions& options) {
  std::vector<v1::Transform> transforms;
  v1::ListTransformsRequest request;
  request.set_page_size(kPageSize);
  do {
    Call call(options, impl_->options.unary_timeout);
    v1::ListTransformsResponse response;
    INTRAWARP_RETURN_IF_ERROR(FromGrpcStatus(impl_->transforms.ListTransforms(call.context(), request, &response)));
    for (v1::Transform& transform : *response.mutable_transforms()) transforms.push_back(std::move(transform));
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return transforms;
}

absl::Status Client::DeleteTransform(const std::string& name, const CallOptions& options) {
  Call call(options, impl_->options.unary_timeout);
  v1::DeleteTransformRequest request;
  request.set_name(name);
  v1::DeleteTransformResponse response;
  return FromGrpcStatus(impl_->transforms.DeleteTransform(call.context(), request, &response));
}

absl::StatusOr<v1::Transform> Client::UploadAffine(const std::string& id, const AffineMap& affine,
                                                   const CallOptions& options) {
  v1::UploadHeader header;
  header.set_id(id);
  *header.mutable_transform()->mutable_affine() = AffineMapToProto(affine);
  return impl_->UploadTransform(std::move(header), {}, options);
}

absl::StatusOr<v1::Transform> Client::UploadField(const std::string& id, const Geometry& geometry,
                                                  absl::Span<const float> displacement, const CallOptions& options) {
  v1::UploadHeader header;
  header.set_id(id);
  v1::FieldHeader& field = *header.mutable_transform()->mutable_field();
  *field.mutable_geometry() = GeometryToProto(geometry);
  field.set_encoding(v1::FIELD_ENCODING_FLOAT32);
  return impl_->UploadTransform(std::move(header), displacement, options);
}

absl::StatusOr<v1::Transform> Client::UploadControlGrid(const std::string& id, const ControlGridUpload& grid,
                                                        const CallOptions& options) {
  v1::UploadHeader header;
  header.set_id(id);
  v1::FieldHeader& field = *header.mutable_transform()->mutable_field();
  *field.mutable_geometry() = GeometryToProto(grid.geometry);
  field.set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
  *field.mutable_affine() = AffineMapToProto(grid.affine);
  if (grid.domain) *field.mutable_domain() = GeometryToProto(*grid.domain);
  return impl_->UploadTransform(std::move(header), grid.coefficients, options);
}

absl::StatusOr<v1::Transform> Client::UploadVelocity(const std::string& id, const VelocityUpload& velocity,
                                                     const CallOptions& options) {
  v1::UploadHeader header;
  header.set_id(id);
  v1::FieldHeader& field = *header.mutable_transform()->mutable_field();
  *field.mutable_geometry() = GeometryToProto(velocity.geometry);
  field.set_encoding(v1::FIELD_ENCODING_VELOCITY);
  *field.mutable_affine() = AffineMapToProto(velocity.affine);
  return impl_->UploadTransform(std::move(header), velocity.velocity, options);
}

absl::StatusOr<v1::Transform> Client::Impl::UploadTransform(v1::UploadHeader header, absl::Span<const float> values,
                                                            const CallOptions& call_options) {
  const absl::string_view bytes = Bytes(values);
  v1::TransformUpload& transform = *header.mutable_transform();
  if (transform.has_field()) transform.mutable_field()->set_total_bytes(static_cast<int64_t>(bytes.size()));
  INTRAWARP_ASSIGN_OR_RETURN(v1::UploadResponse response, Upload(std::move(header), {{bytes}, nullptr}, call_options));
  return std::move(*response.mutable_transform());
}

absl::StatusOr<v1::FieldHeader> Client::DownloadField(const v1::DownloadRequest& request, const GridSink& field,
                                                      const CallOptions& options) {
  GridReceiver receiver(field, 3, impl_->options.max_answer_bytes);
  v1::FieldHeader header;
  const auto accept = [&](const v1::DownloadResponse& response) {
    header = response.header().field();
    return receiver.Begin(header);
  };
  INTRAWARP_RETURN_IF_ERROR(
      ReadResuming<v1::DownloadResponse>(*impl_, kDownloadMethod, request, receiver, options, accept));
  return header;
}

absl::Status Client::WarpVolume(const v1::WarpVolumeRequest& request, const GridSink& voxels,
                                const CallOptions& options) {
  GridReceiver receiver(voxels, 1, impl_->options.max_answer_bytes);
  const auto accept = [&](const v1::WarpVolumeResponse& response) {
    return receiver.Begin(response.header().geometry(), response.header().total_bytes());
  };
  return ReadResuming<v1::WarpVolumeResponse>(*impl_, "/intrawarp.v1.TransformService/WarpVolume", request, receiver,
                                              options, accept);
}

absl::StatusOr<std::vector<Vec3d>> Client::MapPoints(const std::string& transform, absl::Span<const Vec3d> points,
                                                     bool inverse, const CallOptions& options) {
  const std::unique_ptr<v1::TransformService::Stub> stub =
      v1::TransformService::NewStub(points.size() > kControlPoints ? impl_->bulk() : impl_->control);
  std::vector<Vec3d> mapped;
  mapped.reserve(points.size());
  for (size_t first = 0; first < points.size(); first += kMaxPoints) {
    const absl::Span<const Vec3d> batch = points.subspan(first, kMaxPoints);
    Call call(options, impl_->options.unary_timeout);
    v1::MapPointsResponse response;
    INTRAWARP_RETURN_IF_ERROR(
        FromGrpcStatus(stub->MapPoints(call.context(), MakeRequest(transform, batch, inverse), &response)));
    if (static_cast<size_t>(response.points_size()) != 3 * batch.size()) {
      return absl::InternalError(
          absl::StrCat("the server answered ", response.points_size(), " numbers for ", batch.size(), " points"));
    }
    for (int i = 0; i < response.points_size(); i += 3) {
      mapped.push_back({response.points(i), response.points(i + 1), response.points(i + 2)});
    }
  }
  return mapped;
}

}  // namespace intrawarp::client
