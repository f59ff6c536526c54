// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/unary.h"

#include <grpcpp/test/default_reactor_test_peer.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/field_error.h"
#include "intrawarp/v1/volume.pb.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

TEST(Reply, FinishesTheCallWithTheStatus) {
  grpc::CallbackServerContext call;
  grpc::testing::DefaultReactorTestPeer peer(&call);
  EXPECT_EQ(Reply(&call, InvalidField("name", "is wrong")), peer.reactor());
  ASSERT_TRUE(peer.test_status_set());
  EXPECT_EQ(peer.test_status().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(peer.test_status().error_message(), "name: is wrong");
}

TEST(ReplyFromDisk, FinishesTheCallOnceTheWorkIsDone) {
  grpc::CallbackServerContext call;
  grpc::testing::DefaultReactorTestPeer peer(&call);
  DurableObjects durable;
  bool was_finished = true;
  ReplyFromDisk(&call, durable, [&] {
    was_finished = peer.test_status_set();
    return absl::NotFoundError("gone");
  });
  EXPECT_FALSE(was_finished);
  ASSERT_TRUE(peer.test_status_set());
  EXPECT_EQ(peer.test_status().error_code(), grpc::StatusCode::NOT_FOUND);
}

// The page of a list with the volumes a, b, c, d and e.
absl::StatusOr<v1::ListVolumesResponse> PageOf(const v1::ListVolumesRequest& request) {
  v1::ListVolumesResponse response;
  const auto list = [](const std::string& after, int limit) {
    ListedMessages<v1::Volume> page;
    for (const std::string id : {"a", "b", "c", "d", "e"}) {
      if (id > after && static_cast<int>(page.size()) < limit) page[id].set_name(id);
    }
    return page;
  };
  INTRAWARP_RETURN_IF_ERROR(ListPage("volumes", request, response, *response.mutable_volumes(), list));
  return response;
}

std::vector<std::string> NamesOn(const v1::ListVolumesResponse& page) {
  std::vector<std::string> names;
  for (const v1::Volume& volume : page.volumes()) names.push_back(volume.name());
  return names;
}

TEST(ListPage, GoesOnWhereThePageBeforeEnded) {
  v1::ListVolumesRequest request;
  request.set_page_size(2);
  std::vector<std::vector<std::string>> pages;
  do {
    const absl::StatusOr<v1::ListVolumesResponse> page = PageOf(request);
    ASSERT_TRUE(page.ok()) << page.status();
    pages.push_back(NamesOn(*page));
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, (std::vector<std::vector<std::string>>{{"a", "b"}, {"c", "d"}, {"e"}}));
}

TEST(ListPage, AFullLastPageHasNoToken) {
  v1::ListVolumesRequest request;
  request.set_page_size(5);
  const absl::StatusOr<v1::ListVolumesResponse> page = PageOf(request);
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->volumes_size(), 5);
  EXPECT_EQ(page->next_page_token(), "");
}

// A list that returns more than it was asked for, such as volumes together with lost ones.
TEST(ListPage, LeavesOutWhatIsBeyondThePage) {
  v1::ListVolumesRequest request;
  request.set_page_size(1);
  v1::ListVolumesResponse response;
  const auto list = [](const std::string&, int) { return ListedMessages<v1::Volume>{{"a", {}}, {"b", {}}, {"c", {}}}; };
  ASSERT_TRUE(ListPage("volumes", request, response, *response.mutable_volumes(), list).ok());
  EXPECT_EQ(response.volumes_size(), 1);
  EXPECT_EQ(response.next_page_token(), PageToken("volumes", "a"));
}

TEST(ListPage, ErrorsNameTheField) {
  v1::ListVolumesRequest negative;
  negative.set_page_size(-1);
  EXPECT_EQ(FieldOf(PageOf(negative).status()), "page_size");
  v1::ListVolumesRequest foreign;
  foreign.set_page_token(PageToken("transforms", "a"));
  EXPECT_EQ(FieldOf(PageOf(foreign).status()), "page_token");
}

}  // namespace
}  // namespace intrawarp::server
