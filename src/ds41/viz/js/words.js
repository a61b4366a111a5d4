// Texts and numbers in the language of the figure. WORDS and LOCALE are filled in for another language than English.
const WORDS = {};
const LOCALE = "en-US";

// say`Runs on ${count} tokens.` is the message "Runs on {1} tokens."; a translation may order its values anew.
function say(strings, ...values) {
  const message = strings.reduce((text, part, place) => `${text}{${place}}${part}`);
  return (WORDS[message] ?? message).replace(/\{(\d+)\}/g, (_, place) => values[place - 1]);
}

// With thousands in groups; `most` digits after the decimal mark, at least `least`.
const number = (value, most = 3, least = 0) =>
  value.toLocaleString(LOCALE, { maximumFractionDigits: most, minimumFractionDigits: least });

// A number as JavaScript writes it, with the decimal mark of the language.
const MARK = number(0.5).charAt(1);
const plain = (digits) => String(digits).replace(".", MARK);

// Numbers one after the other: a decimal comma needs another sign between them.
const series = (numbers) => numbers.join(say`, `);
