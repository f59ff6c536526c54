// SPDX-License-Identifier: Apache-2.0
// RunningMoves: the series that archives were asked to send here by C-MOVE, so that the storage port knows whose the
// instances are that come.
//
// An instance belongs to a move when its store request names the move, or, where an archive names none, when its sender
// and series are those of a move. What still comes of a move that has ended or was cancelled is nobody's: the rest of a
// series that broke off must not become a volume.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_PACS_RUNNING_MOVES_H_
#define INTRAWARP_SERVER_PACS_RUNNING_MOVES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/string_view.h"
#include "server/pacs/series_intake.h"

namespace intrawarp::server {

class RunningMoves {
 public:
  // `first_id`: a random number, so that the requests of an earlier run have others.
  explicit RunningMoves(uint16_t first_id) : next_id_(first_id) {}

  // Until End, what the application entity sends of the intake's series belongs to it. The number is for the request's
  // message id. 0: there are too many.
  uint16_t Begin(const std::string& ae_title, std::shared_ptr<SeriesIntake> intake);
  // `newest`: the largest number of any association so far.
  void End(uint16_t id, int64_t newest);

  // The intake of the move with this number; null when it has ended or was cancelled, or was asked of another
  // application entity: whoever guesses a number must not add to the series of others.
  std::shared_ptr<SeriesIntake> Named(uint16_t id, absl::string_view ae_title) const;

  struct Owner {
    std::shared_ptr<SeriesIntake> intake;  // null: a peer's own series
    // It belongs to a move that has ended.
    bool is_late = false;
  };
  // The move of an instance that names none, and came on this association.
  Owner Of(absl::string_view ae_title, absl::string_view series, int64_t association) const;

 private:
  struct Move {
    std::string ae_title;
    std::shared_ptr<SeriesIntake> intake;
  };
  struct Ended {
    std::string ae_title;
    std::string series;
    int64_t newest = 0;
  };

  mutable std::mutex mutex_;
  uint16_t next_id_;
  std::map<uint16_t, Move> moves_;
  std::deque<Ended> ended_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_RUNNING_MOVES_H_
