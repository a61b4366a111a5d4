// The Engram hash in exact integers: BigInt, because products reach 2^63 and a Number is exact to 2^53.

const DEAD = -1;

// Compressed ids from place `at` backwards, DEAD before the start.
const windowAt = (ids, at, size) => Array.from({ length: size }, (_, back) => (back <= at ? ids[at - back] : DEAD));

// A dead id hides all that lies behind it; the pad token's id stands in for what is hidden.
function masked(ids, pad) {
  const dead = ids.indexOf(DEAD);
  return ids.map((id, back) => (dead >= 0 && back >= dead ? pad : id));
}

// products: one for each distance back. hashes: of the 2-gram, the 3-gram and so on. rows: [order][head].
function hashWindow(hash, ids, multiply = (id, multiplier) => BigInt(id) * BigInt(multiplier)) {
  const products = masked(ids, hash.pad).map((id, back) => multiply(id, hash.multipliers[back]));
  const hashes = [];
  products.reduce((mixed, product) => {
    hashes.push(mixed ^ product);
    return mixed ^ product;
  });
  const rows = hashes.map((value, order) =>
    hash.primes[order].map((prime, head) => hash.offsets[order][head] + Number(value % BigInt(prime))),
  );
  return { products, hashes, rows };
}

// Columns that would read another row if the products were doubles.
function wrongThroughDoubles(hash, ids) {
  const right = hashWindow(hash, ids).rows.flat();
  const rounded = hashWindow(hash, ids, (id, multiplier) => BigInt(id * Number(multiplier))).rows.flat();
  return right.filter((row, column) => row !== rounded[column]).length;
}

// The largest n whose n-grams are the same in two windows; 0 if not even the 2-grams are.
function sharedOrder(hash, ids, others) {
  const [one, other] = [masked(ids, hash.pad), masked(others, hash.pad)];
  const differs = one.findIndex((id, back) => id !== other[back]);
  const order = differs < 0 ? one.length : differs;
  return order >= 2 ? order : 0;
}

const grouped = (integer) => number(BigInt(integer));
