// SPDX-License-Identifier: Apache-2.0
// PageState: the lines of the page's stream of the server's state, for one caller: devices and memory as GetServerInfo
// tells them, and the sessions that the caller may see with the frames that were answered since the line before.
//
// Thread-compatible.
#ifndef INTRAWARP_SERVER_PAGE_PAGE_STATE_H_
#define INTRAWARP_SERVER_PAGE_PAGE_STATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "server/context/server_context.h"
#include "server/identity/identity.h"
#include "server/page/page_json.h"

namespace intrawarp::server {

class NavigateSession;
class ViewerHub;

class PageState {
 public:
  // Both outlive it.
  PageState(ServerContext& context, const ViewerHub& hub) : context_(context), hub_(hub) {}
  // A line of JSON with its end.
  std::string NextLine(const Identity& caller);

 private:
  Json DevicesJson(const Identity& caller) const;
  Json MemoryJson(const Identity& caller) const;
  Json SessionJson(const std::shared_ptr<NavigateSession>& session);

  ServerContext& context_;
  const ViewerHub& hub_;
  // The last answer that a line told, by session; those that are gone are forgotten.
  std::map<std::weak_ptr<NavigateSession>, int64_t, std::owner_less<std::weak_ptr<NavigateSession>>> told_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_PAGE_STATE_H_
