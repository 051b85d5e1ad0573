// A thread of assistant-ui around the runtime of the guide. The markup has the labels of the guide's
// own page, so that the same cases can be played on both.

import { StrictMode, useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { ComposerPrimitive, ErrorPrimitive, MessagePrimitive, ThreadPrimitive } from '@assistant-ui/react';
import { load } from 'guide/chat';
import { Assistant } from 'guide/assistant';

const Text = ({ text }) => <p>{text}</p>;

function Tool({ toolName, result, isError, approval, respondToApproval }) {
  const isOpen = approval && approval.approved === undefined && result === undefined;
  const state = isOpen ? 'approval-requested' : isError ? 'failed' : result === undefined ? 'running' : 'done';
  return (
    <div>
      {toolName}: {state}
      {isOpen && (
        <>
          <button onClick={() => respondToApproval({ approved: true })}>Allow</button>
          <button onClick={() => respondToApproval({ approved: false })}>Deny</button>
        </>
      )}
    </div>
  );
}

const Agent = ({ data }) => <div>{data.name}: {data.state}</div>;

const Message = role => () => (
  <MessagePrimitive.Root asChild>
    <article aria-label={role}>
      <MessagePrimitive.Parts components={{ Text, tools: { Fallback: Tool }, data: { by_name: { agent: Agent } } }} />
      <MessagePrimitive.Error>
        <ErrorPrimitive.Root><ErrorPrimitive.Message /></ErrorPrimitive.Root>
      </MessagePrimitive.Error>
    </article>
  </MessagePrimitive.Root>
);

const components = { UserMessage: Message('user'), AssistantMessage: Message('assistant') };

const Thread = () => (
  <ThreadPrimitive.Root>
    <ThreadPrimitive.Viewport>
      <ThreadPrimitive.Messages components={components} />
    </ThreadPrimitive.Viewport>
    <ComposerPrimitive.Root>
      <ComposerPrimitive.Input aria-label="Message" />
      <ThreadPrimitive.If running>
        <ComposerPrimitive.Cancel>Stop</ComposerPrimitive.Cancel>
      </ThreadPrimitive.If>
    </ComposerPrimitive.Root>
  </ThreadPrimitive.Root>
);

function Page({ id }) {
  const [earlier, setEarlier] = useState();
  const [error, setError] = useState();
  useEffect(() => {
    load(id).then(setEarlier, setError);
  }, [id]);
  if (error) return <p role="alert">{error.message}</p>;
  return earlier && <Assistant id={id} earlier={earlier}><Thread /></Assistant>;
}

const id = new URLSearchParams(location.search).get('id')!;
createRoot(document.getElementById('root')!).render(<StrictMode><Page id={id} /></StrictMode>);
