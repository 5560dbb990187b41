// An agent behind HTTP for the flight bundle: Node 18 or later, no packages, no model.
//
//     node agent.mjs 9000
//     reward-kit agent-eval -d ../flight_task --agent http://127.0.0.1:9000 --no-sim-user
//
// It speaks the protocol reward-kit.agent/1 (docs/http-agent.md). Rules stand where a model would decide.
import { createServer } from "node:http";

const CITIES = { "san francisco": "SFO", "new york": "JFK", "los angeles": "LAX", seattle: "SEA", boston: "BOS" };

async function callTool(door, name, args) {
  const response = await fetch(`${door.tools_url}/${name}`, {
    method: "POST",
    headers: { authorization: `Bearer ${door.token}`, "content-type": "application/json" },
    body: JSON.stringify(args),
  });
  const answer = await response.json();
  if (!response.ok) throw new Error(`${name}: HTTP ${response.status}: ${answer.detail}`);
  return answer; // { result: text, status: "ok" | "refused" | ..., stopped: null | reason }
}

function route(text) {
  for (const [city, code] of Object.entries(CITIES)) text = text.replace(new RegExp(city, "i"), code);
  return /from ([A-Z]{3}) to ([A-Z]{3})/.exec(text);
}

function tomorrow(systemPrompt) {
  const today = new Date(`${/\d{4}-\d\d-\d\d/.exec(systemPrompt ?? "")?.[0] ?? "2025-05-19"}T00:00:00Z`);
  return new Date(today.getTime() + 86_400_000).toISOString().slice(0, 10);
}

async function respond(turn) {
  const said = turn.messages.filter((message) => message.role === "user").map((message) => message.content);
  const everything = said.join("\n");

  const booking = /\b[0-9A-F]{8}\b/.exec(everything);
  if (booking && /pay/i.test(everything)) {
    const { status, result } = await callTool(turn.door, "pay_booking", { booking_id: booking[0] });
    return status === "ok" ? `Booking ${booking[0]} is paid.` : `That did not work. ${result}`;
  }

  const found = route(everything);
  if (!found) return "From where to where would you like to fly?";
  const [, origin, dest] = found;
  const search = { origin, dest, date: tomorrow(turn.system_prompt) };
  const flights = JSON.parse((await callTool(turn.door, "search_flights", search)).result);
  if (flights.length === 0) return "There is no seat left on that day.";
  const first = flights[0];
  if (!/book|i want/i.test(everything)) return `The first flight leaves at ${first.depart.slice(11)}.`;

  const name = /(?:my name is|i am|i'm) ([A-Z][\w ]*)/i.exec(everything)?.[1].trim();
  if (!name) return `The flight at ${first.depart.slice(11)} has seats. What is the passenger's name?`;
  const reserved = await callTool(turn.door, "create_booking", { flight_id: first.id, passenger: name });
  if (reserved.status !== "ok") return `That did not work. ${reserved.result}`;
  await callTool(turn.door, "pay_booking", { booking_id: JSON.parse(reserved.result).booking_id });
  return `Booked and paid for ${name}: the flight leaves at ${first.depart.slice(11)}.`;
}

const server = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  let status = 200;
  let answer;
  try {
    const turn = JSON.parse(Buffer.concat(chunks).toString("utf8"));
    answer = turn.event === "turn" ? { reply: await respond(turn) } : {};
  } catch (error) {
    status = 500;
    answer = { error: String(error) };
  }
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(answer));
});
server.listen(Number(process.argv[2] ?? 9000), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
