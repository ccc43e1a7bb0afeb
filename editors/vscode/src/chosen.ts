/** The settings that the user has chosen, as the server takes them. No VS Code in here.
 *
 * Only what was chosen is sent: a default of the editor must not go before the user's config.toml.
 */

/** What VS Code knows of a setting in its places; later ones go before earlier ones. */
export interface Inspected {
  readonly globalValue?: unknown;
  readonly workspaceValue?: unknown;
  readonly workspaceFolderValue?: unknown;
}

export type Chosen = Record<string, Record<string, unknown>>;

/** `keys` are "section.key"; `restricted` ones, which name models and the like, are taken from the user alone. */
export function chosen(
  keys: readonly string[],
  restricted: ReadonlySet<string>,
  inspect: (key: string) => Inspected | undefined,
): Chosen {
  const found: Chosen = {};
  for (const name of keys) {
    const places = inspect(name);
    const value =
      restricted.has(name)
        ? places?.globalValue
        : (places?.workspaceFolderValue ?? places?.workspaceValue ?? places?.globalValue);
    if (value === undefined || value === null) {
      continue;
    }
    const dot = name.indexOf(".");
    const section = name.slice(0, dot);
    found[section] = { ...found[section], [name.slice(dot + 1)]: value };
  }
  return found;
}

/** A setting's list of names, whatever was written there. */
export function names(value: unknown): string[] {
  return Array.isArray(value) ? value.filter((one) => typeof one === "string") : [];
}
