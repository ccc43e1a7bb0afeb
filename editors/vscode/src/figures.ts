/** The status bar's texts. No VS Code in here. */

export type EngineState = {
  readonly state: "loading" | "ready" | "failed";
  readonly text: string;
  readonly percentage: number;
};

/** The figures of `completion-ls status --json` that are shown. */
export type Figures = {
  readonly first_token_ms_p50?: number;
  readonly tokens_per_second?: number;
  readonly draft_tokens_checked?: number;
  readonly draft_tokens_accepted?: number;
  readonly answered_without_pass_share?: number;
  readonly suggestions?: Readonly<Record<string, unknown>>;
  readonly [name: string]: unknown;
};

/** What stands in the status bar: an icon and perhaps a word. */
export function label(state: EngineState | undefined, isOff: boolean): string {
  if (isOff) {
    return "$(circle-slash) completion-ls off";
  }
  switch (state?.state) {
    case "ready":
      return "$(sparkle) completion-ls";
    case "loading":
      return `$(loading~spin) completion-ls ${state.percentage} %`;
    case "failed":
      return "$(error) completion-ls";
    default:
      return "$(loading~spin) completion-ls";
  }
}

/** The tooltip, as Markdown. */
export function tooltip(state: EngineState | undefined, figures: Figures, off: string): string {
  if (off) {
    return `completion-ls is off ${off}. Click for the menu, which turns it on.`;
  }
  if (state === undefined) {
    return "completion-ls starts.";
  }
  if (state.state !== "ready") {
    return state.text;
  }
  const lines = [`completion-ls: **${state.text}**`];
  const first = figures.first_token_ms_p50;
  if (first) {
    lines.push(`First token: ${first.toFixed(0)} ms (median)`);
  }
  if (figures.tokens_per_second) {
    lines.push(`Tokens per second: ${figures.tokens_per_second.toFixed(0)}`);
  }
  if (figures.draft_tokens_checked) {
    const share = (100 * (figures.draft_tokens_accepted ?? 0)) / figures.draft_tokens_checked;
    lines.push(`Drafts accepted: ${share.toFixed(0)} %`);
  }
  if (figures.answered_without_pass_share) {
    const share = 100 * figures.answered_without_pass_share;
    lines.push(`Keys answered without the model: ${share.toFixed(0)} %`);
  }
  const counts = (name: string): number => Number(figures.suggestions?.[name] ?? 0);
  if (counts("shown")) {
    lines.push(`Suggestions accepted: ${counts("accepted")} of ${counts("shown")}`);
  }
  const judged = counts("characters_judged_after_5_min");
  if (judged) {
    const share = (100 * counts("characters_kept_after_5_min")) / judged;
    lines.push(`Accepted text kept after 5 minutes: ${share.toFixed(0)} %`);
  }
  return lines.join("\n\n");
}
