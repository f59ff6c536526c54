// SPDX-License-Identifier: Apache-2.0
// An HTTP server on 127.0.0.1 for tests: it reads requests, and a function of the test answers with raw bytes, so that
// an answer can be as wrong as it likes. Thread-safe.
#ifndef INTRAWARP_TESTS_IO_DICOMWEB_HTTP_PEER_H_
#define INTRAWARP_TESTS_IO_DICOMWEB_HTTP_PEER_H_

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace intrawarp::dicomweb {

struct PeerRequest {
  std::string method, target;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

class HttpPeer {
 public:
  // The connection as an answering function sees it.
  class Wire {
   public:
    Wire(int fd, const std::atomic<bool>& stopping) : fd_(fd), stopping_(stopping) {}
    // False once the other side or the peer has gone.
    bool Send(const std::string& bytes);
    // With its length.
    bool Reply(int status, const std::string& headers, const std::string& body);
    bool stopping() const { return stopping_; }

   private:
    const int fd_;
    const std::atomic<bool>& stopping_;
  };
  // The connection is closed once it returns false.
  using AnswerFn = std::function<bool(const PeerRequest&, Wire&)>;

  // `reads_body`: whether a request's body is read before it is answered.
  explicit HttpPeer(AnswerFn answer, bool reads_body = true);
  ~HttpPeer();

  // "http://127.0.0.1:PORT"
  std::string url() const;
  int port() const { return port_; }
  std::vector<PeerRequest> requests() const;

 private:
  void Listen();
  void Serve(int fd);

  const AnswerFn answer_;
  const bool reads_body_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::vector<PeerRequest> requests_;
  std::vector<std::thread> serving_;
  std::thread listening_;
};

}  // namespace intrawarp::dicomweb

#endif  // INTRAWARP_TESTS_IO_DICOMWEB_HTTP_PEER_H_
