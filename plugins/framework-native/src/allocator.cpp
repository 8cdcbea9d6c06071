#include "allocator.hpp"

#include "sha256.hpp"
#include "xxh3.hpp"

namespace native {
namespace {

constexpr size_t kKeptChanges = 16'384; // longer tables pay for a new object each time
constexpr size_t kKeptHits = 64, kLongestKeptHit = 4'096; // hits kept as tuples; blocks of one

int64_t blocks_for(int64_t tokens, int64_t size) { return (tokens + size - 1) / size; }

} // namespace

const BlockHashes *Core::own(nb::handle hashes) const {
    return nb::isinstance<BlockHashes>(hashes) ? nb::inst_ptr<BlockHashes>(hashes) : nullptr;
}

HashList Core::hashes_of(nb::handle sequence) const {
    if (const BlockHashes *hashes = own(sequence)) return hashes->list;
    HashList out;
    for (nb::handle block_hash : sequence) out.own().push_back(hash_of(block_hash));
    return out;
}

Core::Core(const Options &options)
    : options_(options), pool_(std::make_shared<Pool>(options.num_blocks, options.block_size)) {
    const auto size = static_cast<size_t>(options.block_size);
    if (options.native_sha256) hasher_ = std::make_shared<Sha256Hasher>(size);
    if (options.native_xxh3) hasher_ = std::make_shared<Xxh3Hasher>(size);
    index_ = std::make_unique<Index>(*pool_, !options.collision_resistant);
}

void Core::bind(nb::object hasher, nb::object guard, nb::object candidates) {
    this->hasher = std::move(hasher);
    if (options_.native_lru) {
        policy_ = std::make_unique<Lru>(*pool_);
    } else {
        auto made = std::make_unique<PythonPolicy>(std::move(guard), std::move(candidates));
        python_policy = made.get();
        policy_ = std::move(made);
    }
    cache_ = std::make_unique<Cache>(*pool_, *index_, *policy_, options_.leaf_only);
}

void Core::listen(nb::object listener_) {
    listener = std::move(listener_);
    if (listener.is_none()) {
        cache_->listener = nullptr;
        return;
    }
    cache_->listener = [this](const char *kind, const Blocks &blocks) {
        nb::list ids, hashes;
        for (int32_t block : blocks) {
            ids.append(block);
            hashes.append(bytes_of(index_->hash_of(block)));
        }
        listener(framework_.event(kind, ids, hashes));
    };
}

void Core::advance(nb::object now) {
    if (nb::cast<double>(now) < nb::cast<double>(cache_->now))
        framework_.raise("InvalidArgument",
                         "time goes forward: asked for " + text_of(now) + ", it is " + text_of(cache_->now));
    cache_->now = std::move(now);
}

// BlockHashes

/// The root of this very object, if it was asked for of late; equality and hash of a namespace run Python.
const Core::Root *Core::last_root(nb::handle space) const {
    for (const Root &root : last_roots_)
        if (root.space.is_valid() && root.space.is(space)) return &root;
    return nullptr;
}

const Core::Root &Core::root(nb::handle space) {
    if (const Root *known = last_root(space)) return *known;
    const nb::object entry = hasher.attr("root")(space);
    std::swap(last_roots_[0], last_roots_[1]);
    last_roots_[0] = {nb::borrow(space), hash_of(entry[0]), nb::cast<int32_t>(entry[1])};
    return last_roots_[0];
}

void Core::check_hashes(nb::handle hashes, nb::handle space) const {
    const BlockHashes *own_hashes = own(hashes);
    if (own_hashes == nullptr) return;
    const nb::object &made_for = own_hashes->space;
    if (made_for.is(space)) return;
    const Root *one = last_root(made_for), *other = last_root(space);
    const bool same = one != nullptr && other != nullptr && one->anchor == other->anchor;
    if (same && !has_contents(made_for) && !has_contents(space)) return;
    if (!made_for.equal(space))
        framework_.raise("InvalidArgument", "a hit looked up in " + text_of(made_for) + " was used in " +
                                                text_of(space) + "; look it up again");
}

/// The hashes from `out.size()` on to before `last`, below those before, or below `root`.
void Core::hash_more(const BlockHash &root, const Tokens &tokens, int64_t last, nb::handle space,
                     std::vector<BlockHash> &out) {
    const int64_t size = options_.block_size, first = static_cast<int64_t>(out.size());
    if (last <= first) return;
    const BlockHash parent = first > 0 ? out.back() : root; // a copy: the list may move
    if (hasher_ && parent.size() == hasher_->digest_bytes() && !has_contents(space)) {
        hasher_->append(root, tokens.data() + first * size, static_cast<size_t>(last - first), out);
        return;
    }
    hashed_blocks_ += last - first;
    nb::object made = hasher.attr("blocks")(bytes_of(parent), tokens.slice(first * size, last * size), space, first);
    for (nb::handle block_hash : made) out.push_back(hash_of(block_hash));
}

/// Blocks `first` to before `last` as the index compares them; where contents touch them, tokens that `held` owns.
const int32_t *Core::comparable(const Tokens &tokens, int64_t first, int64_t last, nb::handle space,
                                std::optional<Tokens> &held) const {
    const int64_t size = options_.block_size;
    if (options_.collision_resistant || !has_contents(space)) return tokens.data() + first * size;
    held.emplace(framework_, hasher.attr("comparable")(tokens.slice(first * size, last * size), space, first), false);
    return held->data();
}

/// The hashes of all full blocks; those of a scheme in C++ are made as they are needed.
nb::object Core::hash_blocks(const Root &root, const Tokens &tokens, nb::handle space, nb::handle previous) {
    const int64_t count = tokens.size() / options_.block_size;
    auto made = std::make_unique<BlockHashes>();
    if (!previous.is_none()) {
        nb::object known = previous.attr("hashes");
        if (nb::len(known) > 0) {
            check_hashes(known, space);
            if (own(known) != nullptr && static_cast<int64_t>(nb::len(known)) == count) return known;
            made->list = hashes_of(known);
            made->list.shorten(static_cast<size_t>(count));
        }
    }
    made->space = nb::borrow(space);
    if (hasher_ && previous.is_none() && !has_contents(space)) {
        const auto size = static_cast<size_t>(options_.block_size);
        made->list = HashList::of(root.block_hash, tokens.data(), static_cast<size_t>(tokens.size()), size, hasher_);
    } else if (static_cast<int64_t>(made->list.size()) < count) {
        std::vector<BlockHash> &list = made->list.own();
        list.reserve(static_cast<size_t>(count));
        hash_more(root.block_hash, tokens, count, space, list);
    }
    return nb::cast(made.release(), nb::rv_policy::take_ownership);
}

// Calls

nb::object Core::lookup(nb::handle given, nb::handle space, nb::handle previous) {
    const Tokens tokens(framework_, given, true);
    const Root top = root(space); // a copy: a scheme in Python may lead back here
    const int32_t anchor = top.anchor;
    const int64_t limit = tokens.size() > 0 ? (tokens.size() - 1) / options_.block_size : 0;
    nb::object found = hash_blocks(top, tokens, space, previous);
    BlockHashes &made = *nb::inst_ptr<BlockHashes>(found);
    std::optional<Tokens> held;
    const int32_t *contents = comparable(tokens, 0, limit, space, held);
    Blocks blocks =
        index_->find({anchor, 0, made.list, 0, contents, std::min(made.list.size(), static_cast<size_t>(limit))});
    const auto covered = static_cast<int64_t>(blocks.size()) * options_.block_size;
    made.found = listed(std::move(blocks));
    return framework_.hit(covered, made.found->tuple, found, version_);
}

std::shared_ptr<const Listed> Core::listed(Blocks blocks) {
    const bool keep = !blocks.empty() && blocks.size() <= kLongestKeptHit;
    listed_.resize(kKeptHits);
    auto &known = listed_[keep ? (static_cast<uint32_t>(blocks.back()) * 0x9E3779B1u >> 16) % kKeptHits : 0];
    if (keep && known && known->blocks == blocks) return known;
    nb::object tuple = tuple_of(blocks);
    auto made = std::make_shared<const Listed>(Listed{std::move(blocks), std::move(tuple)});
    if (keep) known = made;
    return made;
}

std::shared_ptr<const Listed> Core::check_hit(nb::handle request, int64_t num_tokens, nb::handle hit, nb::object &hashes,
                                              int64_t &covered) const {
    const Keys &keys = framework_.keys;
    const auto version = nb::cast<int64_t>(get(hit, keys.version));
    if (version != version_)
        framework_.raise("StaleHit", "the hit for request " + text_of(get(request, framework_.keys.id)) + " is of version " +
                                         std::to_string(version) + ", the allocator is at " +
                                         std::to_string(version_) + "; look it up again");
    covered = nb::cast<int64_t>(get(hit, keys.num_tokens));
    nb::object tuple = get(hit, keys.blocks);
    hashes = get(hit, keys.hashes);
    const BlockHashes *ours = own(hashes);
    std::shared_ptr<const Listed> listed;
    if (ours != nullptr && ours->found && ours->found->tuple.is(tuple)) {
        listed = ours->found; // as `lookup` found them
    } else {
        Blocks given;
        given.reserve(nb::len(tuple));
        for (nb::handle block : tuple) given.push_back(nb::cast<int32_t>(block));
        listed = std::make_shared<const Listed>(Listed{std::move(given), tuple});
    }
    const Blocks &blocks = listed->blocks;
    if (covered != static_cast<int64_t>(blocks.size()) * options_.block_size ||
        (!blocks.empty() && covered >= num_tokens))
        framework_.raise("InvalidArgument", "a hit of " + std::to_string(covered) + " tokens in " +
                                                std::to_string(blocks.size()) + " blocks is not of this prompt");
    for (int32_t block : blocks)
        if (block < 1 || block > options_.num_blocks)
            framework_.raise("InvalidArgument", "a hit names block " + std::to_string(block) + ", outside 1 to " +
                                                    std::to_string(options_.num_blocks));
    const auto count = static_cast<int64_t>(ours != nullptr ? ours->list.size() : nb::len(hashes));
    if (count > num_tokens / options_.block_size)
        framework_.raise("InvalidArgument", "a hit with " + std::to_string(count) +
                                                " full blocks is not of a prompt of " + std::to_string(num_tokens) +
                                                " tokens");
    check_hashes(hashes, get(request, framework_.keys.space));
    return listed;
}

bool Core::fits(nb::handle request, nb::handle tokens, nb::handle hit) {
    int64_t id = 0;
    const auto num_tokens = static_cast<int64_t>(nb::len(tokens));
    nb::object given = get(request, framework_.keys.id);
    if (find_id(given, id) != nullptr || num_tokens == 0) return false;
    nb::object hashes;
    int64_t covered = 0;
    const std::shared_ptr<const Listed> found = check_hit(request, num_tokens, hit, hashes, covered);
    const Blocks &blocks = found->blocks;
    const int64_t need = blocks_for(num_tokens, options_.block_size) - static_cast<int64_t>(blocks.size());
    return need + (pool_->used != 0 ? options_.reserve : 0) <= cache_->available(blocks);
}

void Core::allocate(nb::handle request, nb::handle given, nb::handle hit, nb::handle room) {
    check_new(request);
    nb::object hashes;
    int64_t covered = 0;
    const std::shared_ptr<const Listed> found = check_hit(request, static_cast<int64_t>(nb::len(given)), hit, hashes, covered);
    const Blocks &hits = found->blocks;
    const Tokens tokens(framework_, given, true);
    if (tokens.size() == 0)
        framework_.raise("InvalidArgument",
                         "request " + text_of(get(request, framework_.keys.id)) + " has an empty prompt; it needs at least one token");
    const int64_t num_tokens = room.is_none() ? tokens.size() : nb::cast<int64_t>(room);
    if (!room.is_none() && (num_tokens <= covered || num_tokens > tokens.size()))
        framework_.raise("InvalidArgument", "room for " + std::to_string(num_tokens) + " tokens of request " +
                                                text_of(get(request, framework_.keys.id)) + ": more than the " +
                                                std::to_string(covered) + " of its hit, and at most the " +
                                                std::to_string(tokens.size()) + " of its prompt");
    const int64_t need = blocks_for(num_tokens, options_.block_size) - static_cast<int64_t>(hits.size());
    const int64_t have = cache_->available(hits), reserve = pool_->used != 0 ? options_.reserve : 0;
    if (need + reserve > have) out_of_blocks(need, have, reserve);
    Table table;
    table.space = get(request, framework_.keys.space);
    const Root &top = root(table.space);
    table.root = top.block_hash;
    table.anchor = top.anchor;
    table.hashes = hashes_of(hashes);
    if (table.hashes.empty())
        hash_more(table.root, tokens, tokens.size() / options_.block_size, table.space, table.hashes.own());
    table.request = nb::borrow(request);
    table.priority = nb::cast<int64_t>(get(request, framework_.keys.priority));
    table.tenant = tenant(nb::object(get(request, framework_.keys.tenant)));
    hold(table, tokens);
    table.published = static_cast<int64_t>(hits.size());
    table.committed = covered;
    table.blocks.reserve(hits.size() + static_cast<size_t>(need));
    table.blocks = hits;
    ++pool_->access;
    cache_->take(need, hits, table.priority, table.blocks, table.hashes);
    const auto id = nb::cast<int64_t>(get(request, framework_.keys.id));
    tables.emplace(id, std::move(table));
    hit_tokens_ += covered;
    prompt_tokens_ += tokens.size();
    ++version_;
}

/// Keep the prompt's tokens: the copy of the list of hashes that is yet to be made from it, or one of the table's own.
void Core::hold(Table &table, const Tokens &tokens) {
    const TokenList kept = table.hashes.tokens();
    const auto count = static_cast<size_t>(tokens.size());
    if (kept.size() == count && std::memcmp(kept.data(), tokens.data(), 4 * count) == 0) {
        table.held = kept;
        return;
    }
    table.hashes.all(); // of a lookup of other tokens
    table.held.own().assign(tokens.data(), tokens.data() + tokens.size());
}

nb::object Core::extend(nb::handle request, nb::handle given) {
    Table &row = find(request);
    const int64_t num_tokens = framework_.count("num_tokens", given, 0);
    const auto size = static_cast<int64_t>(row.blocks.size());
    const int64_t grow = std::max<int64_t>(0, blocks_for(num_tokens, options_.block_size) - size);
    Blocks shared;
    if (row.shared)
        for (int64_t at = std::max(row.committed / options_.block_size, row.published); at < size; ++at) // it writes what it
            if (pool_->ref[row.blocks[at]] > 1 || pool_->published(row.blocks[at])) // published ahead in place
                shared.push_back(static_cast<int32_t>(at));
    const int64_t need = grow + static_cast<int64_t>(shared.size());
    if (need == 0) {
        row.shared = false;
        return changed(row.blocks.size());
    }
    const int64_t have = cache_->available({});
    if (need > have) out_of_blocks(need, have, 0);
    ++pool_->access;
    if (shared.empty()) {
        cache_->take(need, {}, 0, row.blocks);
        ++version_;
        return changed(static_cast<size_t>(size));
    }
    Blocks fresh, sources;
    cache_->take(need, {}, 0, fresh);
    ++version_;
    for (int32_t at : shared) sources.push_back(row.blocks[at]);
    const Blocks own(fresh.begin(), fresh.begin() + static_cast<int64_t>(shared.size()));
    const Blocks rest(fresh.begin() + static_cast<int64_t>(shared.size()), fresh.end());
    try {
        cache_->replace(row.blocks, shared, own);
    } catch (nb::python_error &) {
        cache_->unref(rest);
        throw;
    }
    row.blocks.insert(row.blocks.end(), rest.begin(), rest.end());
    row.shared = false;
    copied_blocks_ += static_cast<int64_t>(shared.size());
    return changed(static_cast<size_t>(shared[0]), sources, own);
}

nb::object Core::commit(nb::handle request, nb::handle given) {
    Table &row = find(request);
    const auto num_tokens = static_cast<int64_t>(nb::len(given));
    const int64_t size = options_.block_size, room = static_cast<int64_t>(row.blocks.size()) * size;
    if (num_tokens < row.committed || num_tokens > room)
        framework_.raise("InvalidArgument", "commit of " + std::to_string(num_tokens) + " tokens for request " +
                                                text_of(request) + ": " + std::to_string(row.committed) +
                                                " are committed and there is room for " + std::to_string(room) +
                                                "; extend first");
    size_t start = row.blocks.size();
    const Tokens tokens(framework_, given, false);
    const int64_t full = num_tokens / size;
    compare(row, request, tokens);
    if (full > row.published && !row.closed) start = publish(row, full, tokens);
    if (const auto known = static_cast<int64_t>(row.held.size()); known < num_tokens)
        row.held.own().insert(row.held.own().end(), tokens.data() + known, tokens.data() + num_tokens);
    for (int64_t at = row.committed / size; at < full && !ahead_.empty(); ++at) ahead_.erase(row.blocks[at]);
    row.committed = num_tokens;
    return changed(start);
}

void Core::compare(const Table &row, nb::handle request, const Tokens &tokens) const {
    const int64_t last = std::min(tokens.size(), static_cast<int64_t>(row.held.size()));
    if (last == 0 || std::memcmp(row.held.data(), tokens.data(), 4 * last) == 0) return;
    int64_t at = 0;
    while (row.held[at] == tokens.data()[at]) ++at;
    framework_.raise("InvalidArgument", "commit of request " + text_of(request) + ": token " + std::to_string(at) +
                                            " is " + std::to_string(tokens.data()[at]) + ", it was " +
                                            std::to_string(row.held[at]) + " before");
}

size_t Core::publish(Table &row, int64_t full, const Tokens &tokens) {
    const int64_t first = row.published;
    const auto known = static_cast<int64_t>(row.hashes.size());
    try {
        if (known < full) hash_more(row.root, tokens, full, row.space, row.hashes.own());
        for (int64_t at = first; at < full; ++at) {
            const int32_t block = row.blocks[at];
            if (!pool_->published(block)) continue;
            row.hashes.reach(static_cast<size_t>(at) + 1);
            if (index_->hash_of(block) != row.hashes[at])
                framework_.raise("InvalidArgument", "commit into block " + std::to_string(block) +
                                                        ", which is published with other content; extend first");
        }
        ++pool_->access;
        std::optional<Tokens> held;
        const Chain chain{row.anchor, first > 0 ? row.blocks[first - 1] : 0, row.hashes, static_cast<size_t>(first),
                          comparable(tokens, first, full, row.space, held), static_cast<size_t>(full - first)};
        const Cache::Published done =
            cache_->publish(chain, row.blocks, static_cast<size_t>(first), row.priority, row.tenant);
        row.published = first + static_cast<int64_t>(done.count);
        row.closed = row.published < full;
        if (row.shared) cache_->note_shared(row.blocks.data() + first, done.count);
        ++version_;
        return done.start;
    } catch (nb::python_error &) {
        row.hashes.shorten(static_cast<size_t>(known));
        throw;
    }
}

void Core::publish_ahead(nb::handle request, nb::handle given) {
    Table &row = find(request);
    const Tokens tokens(framework_, given, false);
    const int64_t first = row.published, size = options_.block_size, full = tokens.size() / size;
    if (const auto room = static_cast<int64_t>(row.blocks.size()) * size; tokens.size() > room)
        framework_.raise("InvalidArgument", "publish of " + std::to_string(tokens.size()) + " tokens for request " +
                                                text_of(request) + ": there is room for " + std::to_string(room) +
                                                "; extend first");
    compare(row, request, tokens);
    if (row.closed || row.shared || full <= first) return;
    if (const auto known = static_cast<int64_t>(row.held.size()); known < tokens.size())
        row.held.own().insert(row.held.own().end(), tokens.data() + known, tokens.data() + tokens.size());
    if (static_cast<int64_t>(row.hashes.size()) < full) hash_more(row.root, tokens, full, row.space, row.hashes.own());
    std::optional<Tokens> held;
    Chain chain{row.anchor, first > 0 ? row.blocks[first - 1] : 0, row.hashes, static_cast<size_t>(first),
                comparable(tokens, first, full, row.space, held), static_cast<size_t>(full - first)};
    chain.count = index_->count_new(chain);
    if (chain.count == 0) return;
    ++pool_->access;
    cache_->publish(chain, row.blocks, static_cast<size_t>(first), row.priority, row.tenant);
    row.published += static_cast<int64_t>(chain.count);
    ahead_.insert(row.blocks.begin() + first, row.blocks.begin() + row.published);
    ++version_;
}

nb::object Core::fork(nb::handle request, nb::handle child, nb::handle given) {
    int64_t parent = 0;
    Table &row = find(request, &parent);
    check_new(child);
    const int64_t num_tokens = framework_.count("num_tokens", given, 0), size = options_.block_size;
    const int64_t room = static_cast<int64_t>(row.blocks.size()) * size;
    if (num_tokens > room)
        framework_.raise("InvalidArgument", "fork of " + std::to_string(num_tokens) + " tokens from request " +
                                                text_of(request) + ", which has room for " + std::to_string(room));
    nb::object space = get(child, framework_.keys.space);
    if (!space.equal(row.space))
        framework_.raise("InvalidArgument",
                         "a fork stays in its parent's " + text_of(row.space) + ", asked for " + text_of(space));
    require_kept("fork", row, num_tokens);
    const int64_t held = blocks_for(num_tokens, size), full = num_tokens / size;
    const int64_t kept = options_.share_tails ? held : full;
    const int64_t have = cache_->available({});
    if (held - kept > have) out_of_blocks(held - kept, have, 0);
    Table made;
    made.request = nb::borrow(child);
    made.priority = nb::cast<int64_t>(get(child, framework_.keys.priority));
    ++pool_->access;
    Blocks fresh;
    cache_->take(held - kept, {}, 0, fresh);
    made.space = row.space;
    made.root = row.root;
    made.anchor = row.anchor;
    made.tenant = tenant(nb::object(get(child, framework_.keys.tenant)));
    made.blocks.assign(row.blocks.begin(), row.blocks.begin() + kept);
    for (auto block = made.blocks.begin() + row.num_null; block != made.blocks.end(); ++block) {
        ++pool_->ref[*block];
        pool_->last_access[*block] = pool_->access;
    }
    made.blocks.insert(made.blocks.end(), fresh.begin(), fresh.end());
    made.committed = num_tokens;
    row.hashes.all(); // the two may go on with other tokens
    made.hashes = row.hashes;
    made.hashes.shorten(static_cast<size_t>(full));
    made.held = row.held;
    made.held.shorten(static_cast<size_t>(num_tokens));
    made.published = std::min({row.published, full, kept});
    made.num_null = row.num_null;
    made.closed = row.closed || (made.num_null > 0 && made.num_null >= made.published); // nothing to publish below
    if (kept != 0) row.shared = made.shared = true;
    const Blocks sources(row.blocks.begin() + kept, row.blocks.begin() + held);
    copied_blocks_ += static_cast<int64_t>(fresh.size());
    ++version_;
    tables.emplace(nb::cast<int64_t>(get(child, framework_.keys.id)), std::move(made)); // may move `row`
    return fresh.empty() ? changed(0) : changed(0, sources, fresh);
}

void Core::foresee(nb::handle request, nb::handle next_use) {
    find(request);
    std::vector<double> uses; // all read before any is written; reading may run Python that frees the table
    for (nb::handle use : next_use) {
        uses.push_back(PyFloat_AsDouble(use.ptr()));
        if (uses.back() == -1.0 && PyErr_Occurred()) throw nb::python_error();
    }
    const Table &row = find(request);
    const size_t known = std::min(uses.size(), static_cast<size_t>(row.published));
    for (size_t at = static_cast<size_t>(row.num_null); at < known; ++at) pool_->next_use[row.blocks[at]] = uses[at];
}

/// Refuse to go back to where the block before was unreferenced: nothing could be published below it.
void Core::require_kept(const char *call, const Table &table, int64_t num_tokens) const {
    if (table.num_null == 0 || num_tokens >= (table.num_null + 1) * options_.block_size) return;
    framework_.raise("InvalidArgument", std::string(call) + " of request " +
                                            text_of(get(table.request, framework_.keys.id)) + " at " +
                                            std::to_string(num_tokens) + " tokens: its first " +
                                            std::to_string(table.num_null * options_.block_size) +
                                            " were passed to unref_leading; keep a full block after them");
}

int64_t Core::unref_leading(nb::handle request, nb::handle given, nb::handle used) {
    Table &row = find(request);
    const int64_t num_tokens = framework_.count("num_tokens", given, 0), size = options_.block_size;
    int64_t last = row.committed / size;
    if (!row.closed) last = std::min(last, row.published);
    const int64_t first = row.num_null, end = std::min(num_tokens / size, last - 1);
    if (end <= first) return first;
    const auto begin = row.blocks.begin();
    const Blocks dropped(std::make_reverse_iterator(begin + end), std::make_reverse_iterator(begin + first));
    std::fill(begin + first, begin + end, 0);
    row.num_null = end;
    ++pool_->access;
    ++version_;
    cache_->detach(row.blocks[static_cast<size_t>(end)]);
    if (!used.is_none()) used(list_of(dropped));
    cache_->unref(dropped); // may run Python that frees the table
    return end;
}

void Core::discard(nb::handle request) {
    const Table &row = find(request);
    if (!ahead_.empty())
        framework_.raise("InvalidArgument", "reset of request " + text_of(request) +
                                                " while a step is being computed; commit it first");
    std::set<int32_t> gone;
    const auto deeper = [&](int32_t a, int32_t b) { return pool_->depth[a] > pool_->depth[b]; };
    for (int32_t block : row.blocks)
        if (pool_->published(block)) gone.insert(block);
    int32_t above = gone.empty() ? 0 : index_->parent(*std::max_element(gone.begin(), gone.end(), deeper));
    for (; above != 0; above = index_->parent(above)) gone.insert(above); // what a window has passed
    for (auto &[id, held] : tables) {
        const auto last = held.blocks.begin() + held.published;
        const auto first = std::find_if(held.blocks.begin(), last, [&](int32_t block) { return gone.count(block) != 0; });
        if (first == last) continue;
        held.published = first - held.blocks.begin();
        held.closed = held.shared = true;
    }
    Blocks blocks(gone.begin(), gone.end()), cached;
    std::sort(blocks.begin(), blocks.end(), deeper);
    for (int32_t block : blocks)
        if (pool_->ref[block] == 0) cached.push_back(block);
    ++version_;
    ++pool_->access;
    std::exception_ptr failure;
    try {
        cache_->unpublish(blocks);
    } catch (nb::python_error &) {
        failure = std::current_exception();
    }
    pool_->free.insert(pool_->free.end(), cached.begin(), cached.end());
    if (failure) std::rethrow_exception(failure);
}

void Core::free(nb::handle request) {
    int64_t id = 0;
    Table &row = find(request, &id);
    if (const int64_t first = row.committed / options_.block_size; row.published * options_.block_size > row.committed) {
        const Blocks ahead(row.blocks.rend() - row.published, row.blocks.rend() - first); // deepest first
        row.published = first;
        for (int32_t block : ahead) ahead_.erase(block);
        cache_->unpublish(ahead);
    }
    const Blocks dropped(row.blocks.rbegin(), row.blocks.rend() - row.num_null);
    tables.erase(id);
    ++pool_->access;
    ++version_;
    cache_->unref(dropped);
}

nb::object Core::table(nb::handle request) {
    const Blocks &blocks = find(request).blocks;
    const nb::bytes raw(reinterpret_cast<const char *>(blocks.data()), 4 * blocks.size());
    return framework_.frombuffer(raw, framework_.int32);
}

void Core::reset() {
    ahead_.clear();
    for (auto &[id, row] : tables) {
        row.closed = row.shared = true;
        row.published = 0;
    }
    ++version_;
    ++pool_->access;
    cache_->reset();
}

// Helpers

const int64_t *Core::find_id(nb::handle request, int64_t &id) const {
    if (PyLong_Check(request.ptr())) {
        int overflow = 0;
        id = PyLong_AsLongLongAndOverflow(request.ptr(), &overflow);
        if (overflow != 0) return nullptr;
    } else if (PyIndex_Check(request.ptr())) {
        id = PyNumber_AsSsize_t(request.ptr(), nullptr);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            return nullptr;
        }
    } else {
        return nullptr;
    }
    auto found = tables.find(id);
    return found == tables.end() ? nullptr : &found->first;
}

Table &Core::find(nb::handle request, int64_t *id) {
    int64_t number = 0;
    if (find_id(request, number) == nullptr)
        framework_.raise("UnknownRequest", "request " + repr_of(request) +
                                               " holds no table: never allocated, or freed before; " +
                                               std::to_string(tables.size()) + " do");
    if (id != nullptr) *id = number;
    return tables.find(number)->second;
}

void Core::check_new(nb::handle request) const {
    nb::object given = get(request, framework_.keys.id);
    const int64_t id = framework_.count("a request id", given, 0);
    if (tables.count(id) != 0)
        framework_.raise("DuplicateRequest", "request " + std::to_string(id) + " holds a table already; free it first");
}

int32_t Core::tenant(nb::handle name) {
    if (!tenants_.contains(name)) tenants_[name] = nb::int_(tenants_.size());
    return nb::cast<int32_t>(tenants_[name]);
}

void Core::out_of_blocks(int64_t need, int64_t have, int64_t reserve) const {
    const int64_t free = std::min(static_cast<int64_t>(pool_->free.size()), have);
    const std::string kept = reserve != 0 ? ", " + std::to_string(reserve) + " of them kept by the watermark" : "";
    framework_.raise("OutOfBlocks", "need " + std::to_string(need) + " blocks, have " + std::to_string(free) +
                                        " free + " + std::to_string(have - free) + " evictable of " +
                                        std::to_string(options_.num_blocks) + kept +
                                        "; preempt a request or raise cache.num_blocks");
}

nb::object Core::changed(size_t start) {
    if (start >= kKeptChanges) return framework_.change(start);
    if (start >= changes_.size()) changes_.resize(start + 1);
    if (!changes_[start].is_valid()) changes_[start] = framework_.change(start);
    return changes_[start];
}

nb::object Core::changed(size_t start, const Blocks &sources, const Blocks &copies) const {
    nb::list pairs;
    for (size_t at = 0; at < copies.size(); ++at) pairs.append(framework_.copy(sources[at], copies[at]));
    return framework_.change(start, nb::tuple(pairs));
}

nb::tuple Core::stats() const {
    return nb::make_tuple(pool_->num_blocks, pool_->free.size(), pool_->cached(), pool_->used, 0, tables.size(),
                          hit_tokens_, prompt_tokens_, cache_->evictions, copied_blocks_, index_->collisions);
}

nb::list Core::hashes_held(nb::handle request) {
    nb::list out;
    for (const BlockHash &block_hash : find(request).hashes.all()) out.append(bytes_of(block_hash));
    return out;
}

nb::object Core::block_hash(int32_t block) const {
    if (block < 0) block += static_cast<int32_t>(pool_->size());
    if (block < 0 || block > pool_->num_blocks) throw nb::index_error("block outside the pool");
    return pool_->published(block) ? nb::object(bytes_of(index_->hash_of(block))) : nb::none();
}

nb::dict Core::state() const {
    nb::dict out, live;
    for (const auto &[id, row] : tables) {
        nb::list hashes;
        for (const BlockHash &block_hash : row.hashes.all()) hashes.append(bytes_of(block_hash));
        live[nb::int_(id)] =
            nb::make_tuple(row.request, list_of(row.blocks), row.committed, row.published, row.num_null, hashes);
    }
    out["tables"] = live;
    nb::list ahead;
    for (int32_t block : ahead_) ahead.append(block);
    nb::list apart;
    for (int32_t block : cache_->detached) apart.append(block);
    out["ahead"] = ahead;
    out["detached"] = apart;
    out["free"] = list_of(pool_->free);
    out["used"] = pool_->used;
    nb::list names;
    for (int32_t block = 0; block <= pool_->num_blocks; ++block) names.append(this->block_hash(block));
    out["block_hash"] = names;
    nb::list found, node, hash_of;
    index_->ids().each([&](int32_t one) { found.append(one); });
    out["found"] = found;
    for (int32_t block = 0; block <= pool_->num_blocks; ++block) node.append(index_->node_of(block));
    out["node"] = node;
    const auto column = [&](int32_t Index::Node::*fact) {
        Blocks values;
        for (const auto &one : index_->nodes) values.push_back(one.*fact);
        return list_of(values);
    };
    out["above"] = column(&Index::Node::above);
    out["kids"] = column(&Index::Node::kids);
    out["resident"] = column(&Index::Node::resident);
    out["block"] = column(&Index::Node::block);
    for (const auto &one : index_->nodes) hash_of.append(bytes_of(one.hash));
    out["hash_of"] = hash_of;
    return out;
}

} // namespace native
